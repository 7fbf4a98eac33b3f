// Trains a convolutional net on MNIST as a pipeline: its first half on worker 0, its second half on worker 1,
// each batch in micro-batches, so that both work at the same time.
//
//   muster run --workers 2 --strategy none -- pipeline
//   muster run --workers 3 --strategy none -- pipeline --stages 3
//
// Every task is a server. Worker 0 is also the client: it builds the graph, runs it, and stops the other.

#include "muster/pipeline.h"

#include "examples/mnist_data.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <torch/torch.h>

#include "muster/graph.h"
#include "muster/ops.h"
#include "muster/server.h"
#include "muster/session.h"
#include "muster/stages.h"
#include "muster/trace.h"

namespace nn = torch::nn;

// An ordinary module: nothing in it knows of tasks.
struct NetImpl : nn::Module {
  NetImpl() {
    register_module("features", features);
    register_module("classifier", classifier);
  }
  torch::Tensor forward(const torch::Tensor& x) { return classifier->forward(features->forward(x)); }

  nn::Sequential features{nn::Conv2d(1, 16, 5), nn::ReLU(), nn::MaxPool2d(2), nn::Flatten()};
  nn::Sequential classifier{nn::Linear(16 * 12 * 12, 128), nn::ReLU(), nn::Linear(128, 10)};
};
TORCH_MODULE(Net);

// Cuts the model where the measured times of the stages are as equal as they can be.
void cut(const muster::Output& loss, int stages,
         const std::vector<std::pair<muster::Output, torch::Tensor>>& batch) {
  std::vector<std::string> devices;
  for (int i = 0; i < stages; ++i) devices.push_back(fmt::format("/job:worker/task:{}", i));
  for (const auto& stage : muster::place_in_stages(loss, devices, batch))
    fmt::print("{}: {} to {}, {:.2f} ms forward, {:.2f} ms backward\n", stage.device, stage.first, stage.last,
               1e-6 * static_cast<double>(stage.forward.count()),
               1e-6 * static_cast<double>(stage.backward.count()));
}

void train(const muster::Server& server, const std::string& folder, int epochs, int64_t batch, double lr,
           int stages, const muster::PipelineOptions& options) {
  torch::manual_seed(1);
  Net net;
  muster::Graph graph;
  const muster::TracedModule traced = muster::trace(graph, net, {torch::zeros({2, 1, 28, 28})});
  const muster::Output labels = graph.placeholder("labels", torch::kLong, {muster::kBatch});
  const muster::Output loss = muster::ops::cross_entropy_loss(traced.outputs[0], labels);
  const auto training = examples::load_mnist(folder, /*train=*/true);
  if (stages == 0) {
    muster::place(graph, {{"features*", "/job:worker/task:0"}, {"classifier*", "/job:worker/task:1"}});
  } else {
    cut(loss, stages,
        {{traced.inputs[0], training.images.slice(0, 0, batch / options.micro_batches)},
         {labels, training.labels.slice(0, 0, batch / options.micro_batches)}});
  }
  const muster::Pipeline pipeline =
      muster::minimize_in_pipeline(muster::optim::SGD({.lr = lr, .momentum = 0.9}), loss, options);

  muster::Session session(server.target(), graph);
  session.run({}, {}, {graph.initializer()});
  const muster::Callable step = session.make_callable(
      {pipeline.batch(traced.inputs[0]), pipeline.batch(labels)}, {pipeline.loss}, {pipeline.train});

  const auto test = examples::load_mnist(folder, /*train=*/false);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const torch::Tensor order = torch::randperm(training.size());
    double sum = 0;
    int64_t steps = 0;
    for (int64_t at = 0; at + batch <= training.size(); at += batch, ++steps) {
      const torch::Tensor mine = order.slice(0, at, at + batch);
      const auto results =
          step({training.images.index_select(0, mine), training.labels.index_select(0, mine)});
      sum += results[0].item<double>();
    }
    const torch::Tensor scores = session.run({traced.outputs[0]}, {{traced.inputs[0], test.images}}).front();
    const double accuracy = scores.argmax(1).eq(test.labels).to(torch::kDouble).mean().item<double>();
    fmt::print("epoch {}: loss {:.4f}, accuracy {:.2f} %\n", epoch + 1, sum / static_cast<double>(steps),
               100 * accuracy);
    std::fflush(stdout);
  }
  for (int i = 1; i < static_cast<int>(server.cluster().jobs().at("worker").size()); ++i)
    muster::Server::stop(server.target("worker", i));
}

int main(int argc, char** argv) {
  int epochs = 5;
  int stages = 0;
  int64_t batch = 64;
  double lr = 0.05;
  std::string folder;
  muster::PipelineOptions options{.micro_batches = 4};
  const std::map<std::string, muster::PipelineSchedule> schedules{
      {"gpipe", muster::PipelineSchedule::kGPipe},
      {"1f1b", muster::PipelineSchedule::k1F1B},
      {"zero-bubble", muster::PipelineSchedule::kZeroBubble}};
  CLI::App app{"Trains a convolutional net on MNIST as a pipeline of two stages"};
  app.add_option("--epochs", epochs, "passes over the training set")->capture_default_str();
  app.add_option("--batch", batch, "samples a step")->capture_default_str();
  app.add_option("--micro-batches", options.micro_batches, "parts of a batch")->capture_default_str();
  app.add_option("--stages", stages,
                 "cut by measured times, one part for each of so many workers; 0: by names")
      ->capture_default_str();
  app.add_option("--schedule", options.schedule, "gpipe, 1f1b or zero-bubble (the default)")
      ->transform(CLI::CheckedTransformer(schedules));
  app.add_option("--lr", lr, "learning rate")->capture_default_str();
  app.add_option("--data", folder,
                 "folder with the IDX files; default: the fetched set, else the shipped subset");
  CLI11_PARSE(app, argc, argv);
  if (folder.empty()) folder = examples::fetched_mnist().value_or(MUSTER_SHIPPED_MNIST);

  try {
    muster::Server server = muster::Server::of_environment();
    if (server.task() == 0) {
      train(server, folder, epochs, batch, lr, stages, options);
    } else {
      server.join();
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "pipeline: {}\n", error.what());
    return 1;
  }
}
