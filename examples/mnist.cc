// Trains a small convolutional net on MNIST, on as many workers as it is started with.
//
//   mnist                                    alone, on the subset in examples/data
//   muster run --workers 2 -- mnist          two workers, which average their gradients
//   muster run --workers 2 --strategy ps-async -- mnist     the same with a parameter server

#include "examples/mnist_data.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <torch/torch.h>

#include "muster/run.h"
#include "muster/seed.h"
#include "muster/shard.h"
#include "muster/trainer.h"

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return fc2(torch::relu(fc1(x.flatten(1))));
  }

  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 16, 5)};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(16, 32, 5)};
  torch::nn::Linear fc1{32 * 4 * 4, 128};
  torch::nn::Linear fc2{128, 10};
};
TORCH_MODULE(Net);

int main(int argc, char** argv) {
  int epochs = 5;
  int64_t batch = 64;
  double lr = 0.02;
  std::string folder;
  CLI::App app{"Trains a small convolutional net on MNIST"};
  app.add_option("--epochs", epochs, "passes over the training set")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", batch, "samples a step, of each worker")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--lr", lr, "learning rate")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--data", folder,
                 "folder with the IDX files; default: the fetched set, else the shipped subset");

  return muster::run(app, argc, argv, [&](muster::Job& job) {
    if (folder.empty()) folder = examples::fetched_mnist().value_or(MUSTER_SHIPPED_MNIST);
    const auto train = examples::load_mnist(folder, /*train=*/true);
    const auto test = examples::load_mnist(folder, /*train=*/false);

    muster::seed(job, 1);
    Net net;
    muster::Trainer trainer(job, net, muster::optim::SGD({.lr = lr, .momentum = 0.9}),
                            {.epochs = epochs,
                             .samples_per_epoch = train.size(),
                             .schedule = muster::cosine_decay(muster::epochs(epochs))});
    trainer.show_progress();

    const muster::Shard shard(train.size(), {.rank = job.rank(), .size = job.size()});
    for (int epoch = 0; epoch < epochs; ++epoch) {
      for (const torch::Tensor& index : shard.epoch(epoch, batch)) {
        trainer.step(
            [&] {
              return torch::cross_entropy_loss(net->forward(train.images.index_select(0, index)),
                                               train.labels.index_select(0, index));
            },
            index.size(0));
      }
      trainer.finish_epoch();  // the others may have a batch more
    }

    const auto sums = trainer.evaluate([&](muster::Sums& mine) {
      const muster::Shard part(test.size(), {.rank = job.rank(), .size = job.size()});
      for (const auto& index : part.in_order(500)) {
        const auto guess = net->forward(test.images.index_select(0, index)).argmax(1);
        mine["correct"] += guess.eq(test.labels.index_select(0, index)).sum().item<double>();
        mine["tested"] += static_cast<double>(index.size(0));  // the part of a worker that died is missing
      }
    });
    if (job.is_chief())
      fmt::print("accuracy {:.2f} % on {:.0f} test digits, {:.0f} samples/s\n",
                 100 * sums.at("correct") / sums.at("tested"), sums.at("tested"),
                 trainer.metrics().samples_per_second);
  });
}
