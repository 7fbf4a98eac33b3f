// A plain libtorch loop as a subject: no Muster, no other worker.
//
//   peer_train_loop DIR RANK MODEL OPTIMIZER BATCH
//
// Several of these side by side are what the cores and the memory allow when nobody waits for anybody.

#include <chrono>
#include <cstdio>
#include <memory>

#include "bench/peers/train_harness.h"
#include "bench/train/models.h"

namespace muster::detail::bench {
namespace {

using Clock = std::chrono::steady_clock;

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        const std::vector<torch::Tensor>& parameters) {
  if (name == "sgd")
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.01).momentum(0.9));
  if (name == "adam")
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-3));
  throw std::invalid_argument("there is no optimizer '" + name +
                              "': sgd and adam are those that are measured");
}

class Loop : public TrainWorker {
 public:
  Loop(const std::string& model, const std::string& optimizer, int64_t batch, int rank)
      : model_(make_model(model)),
        batches_(model_, batch, rank),
        parameters_(model_.net->parameters()),
        optimizer_(make_optimizer(optimizer, parameters_)) {}

  void begin_turn() override {
    compute_ = {};
    update_ = {};
  }

  // Gradients are dropped, not zeroed, as PyTorch's zero_grad(set_to_none=True) does: the fastest plain loop.
  void step() override {
    const auto start = Clock::now();
    for (auto& parameter : parameters_) parameter.mutable_grad().reset();
    const auto [inputs, labels] = batches_.next();
    loss_ = torch::nn::functional::cross_entropy(model_.net->forward(inputs), labels);
    loss_.backward();
    const auto computed = Clock::now();
    optimizer_->step();
    compute_ += computed - start;
    update_ += Clock::now() - computed;
  }

  TrainTurn end_turn() override {
    return {.loss = loss_.item<double>(), .compute = compute_.count(), .wait = 0, .update = update_.count()};
  }

 private:
  TrainModel model_;
  RandomBatches batches_;
  std::vector<torch::Tensor> parameters_;
  const std::unique_ptr<torch::optim::Optimizer> optimizer_;
  torch::Tensor loss_;
  std::chrono::duration<double> compute_{};
  std::chrono::duration<double> update_{};
};

}  // namespace
}  // namespace muster::detail::bench

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fputs("usage: peer_train_loop DIR RANK MODEL OPTIMIZER BATCH\n", stderr);
    return 2;
  }
  try {
    const int rank = std::stoi(argv[2]);
    muster::detail::bench::Loop loop(argv[3], argv[4], std::stoll(argv[5]), rank);
    muster::detail::bench::serve_training(loop, argv[1], rank);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "peer_train_loop: %s\n", error.what());
    return 1;
  }
}
