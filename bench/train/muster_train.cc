// One worker of Muster for `muster bench train`: muster_bench_train DIR --model a --optimizer sgd --batch 64,
// under `muster run`.

#include <CLI/CLI.hpp>

#include "bench/peers/train_harness.h"
#include "bench/train/models.h"
#include "muster/run.h"
#include "muster/trainer.h"

namespace {

using muster::detail::bench::RandomBatches;
using muster::detail::bench::TrainModel;
using muster::detail::bench::TrainTurn;

muster::optim::Optimizer make_rule(const std::string& optimizer) {
  if (optimizer == "sgd") return muster::optim::SGD({.lr = 0.01, .momentum = 0.9});
  return muster::optim::Adam({.lr = 1e-3});
}

struct Task {
  std::string model;
  std::string optimizer;
  int64_t batch = 1;
};

class MusterWorker : public muster::detail::bench::TrainWorker {
 public:
  MusterWorker(muster::Job& job, const Task& task)
      : batch_(task.batch),
        model_(muster::detail::bench::make_model(task.model)),
        batches_(model_, batch_, job.rank()),
        trainer_(job, *model_.net, make_rule(task.optimizer)) {}

  void begin_turn() override { trainer_.reset_metrics(); }

  void step() override {
    const RandomBatches::Batch batch = batches_.next();
    trainer_.step(
        [&] { return torch::nn::functional::cross_entropy(model_.net->forward(batch.inputs), batch.labels); },
        batch_);
  }

  int64_t rest() override {
    trainer_.finish_epoch();
    const muster::Metrics metrics = trainer_.metrics();
    return metrics.steps - metrics.dropped - metrics.skipped;
  }

  TrainTurn end_turn() override {
    const muster::Metrics metrics = trainer_.metrics();
    return {.loss = metrics.loss,
            .compute = metrics.compute.count(),
            .wait = metrics.wait.count(),
            .update = metrics.update.count()};
  }

 private:
  const int64_t batch_;
  TrainModel model_;
  RandomBatches batches_;
  muster::Trainer trainer_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("One worker of Muster for `muster bench train`.");
  std::string directory;
  Task task;
  app.add_option("directory", directory, "where the driver's FIFOs are")->required();
  app.add_option("--model", task.model, "a, b, c or d")->required();
  app.add_option("--optimizer", task.optimizer, "sgd or adam")
      ->check(CLI::IsMember({"sgd", "adam"}))
      ->required();
  app.add_option("--batch", task.batch, "samples of this worker in each step")->required();
  return muster::run(app, argc, argv, [&](muster::Job& job) {
    MusterWorker worker(job, task);
    muster::detail::bench::serve_training(worker, directory, job.rank());
  });
}
