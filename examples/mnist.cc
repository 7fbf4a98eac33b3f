// Trains a small convolutional net on MNIST, in one process for now.
//
//   mnist --epochs 5            with the subset in examples/data, or the whole set after scripts/fetch-mnist

#include "muster/data/mnist.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/observe/progress.h"
#include "muster/train/run.h"

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

double accuracy(Net& net, const muster::Mnist& data) {
  const torch::NoGradGuard no_grad;
  int64_t correct = 0;
  for (int64_t begin = 0; begin < data.size(); begin += 500) {
    const int64_t end = std::min(begin + 500, data.size());
    const auto guess = net->forward(data.images.slice(0, begin, end)).argmax(1);
    correct += guess.eq(data.labels.slice(0, begin, end)).sum().item<int64_t>();
  }
  return static_cast<double>(correct) / static_cast<double>(data.size());
}

int main(int argc, char** argv) {
  int epochs = 5;
  int64_t batch = 64;
  double lr = 0.05;
  std::string folder;
  CLI::App app{"Trains a small convolutional net on MNIST"};
  app.add_option("--epochs", epochs, "passes over the training set")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", batch, "samples a step")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--lr", lr, "learning rate")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--data", folder,
                 "folder with the IDX files; default: the fetched set, else the shipped subset");

  return muster::run(app, argc, argv, [&](muster::Job& job) {
    if (job.tasks().size() > 1) {
      throw muster::InvalidArgument(
          "mnist trains in one process for now: run it with --workers 1, or without a launcher");
    }
    if (folder.empty())
      folder = muster::fetched_mnist(job.config().environment).value_or(MUSTER_SHIPPED_MNIST);
    const auto train = muster::load_mnist(folder, /*train=*/true);
    const auto test = muster::load_mnist(folder, /*train=*/false);
    fmt::print("training on {} digits from {}\n", train.size(), folder);

    torch::manual_seed(1);
    Net net;
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
    const int64_t steps = train.size() / batch;
    muster::Progress progress(job.config().progress, epochs * steps);
    const auto start = muster::Deadline::Clock::now();
    double rate = 0;
    for (int epoch = 0; epoch < epochs; ++epoch) {
      const auto order = torch::randperm(train.size(), torch::kLong);
      for (int64_t step = 0; step < steps; ++step) {
        const auto index = order.slice(0, step * batch, (step + 1) * batch);
        optimizer.zero_grad();
        auto loss = torch::cross_entropy_loss(net->forward(train.images.index_select(0, index)),
                                              train.labels.index_select(0, index));
        loss.backward();
        optimizer.step();
        const int64_t done = epoch * steps + step + 1;
        rate = static_cast<double>(done * batch) /
               std::chrono::duration<double>(muster::Deadline::Clock::now() - start).count();
        progress.update(done, fmt::format("epoch {}/{}  loss {:.4f}  {:.0f} samples/s", epoch + 1, epochs,
                                          loss.item<float>(), rate));
      }
    }
    progress.finish();
    fmt::print("accuracy {:.2f} % on {} test digits, {:.0f} samples/s\n", 100 * accuracy(net, test),
               test.size(), rate);
  });
}
