// Trains a model that is larger than any of the tasks that hold it: each task has a memory limit, and a part
// of the layers.
//
//   muster run --workers 2 --strategy none -- model_parallel
//   muster run --workers 2 --strategy none -- model_parallel --tasks 1     # does not fit
//
// Every task is a server. Worker 0 is also the client: it builds the graph, runs it, and stops the others.
// The parameters never pass through it: their first values are drawn on the tasks that keep them.

#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <torch/torch.h>

#include "muster/graph.h"
#include "muster/ops.h"
#include "muster/server.h"
#include "muster/session.h"

namespace ops = muster::ops;

struct Options {
  int tasks = 2;
  int layers = 8;
  int64_t width = 1024;
  int64_t batch = 64;
  int steps = 40;
  double lr = 0.001;
  int64_t memory_limit = 80;  // MiB
};

std::string device_of(int layer, const Options& options) {
  return fmt::format("/job:worker/task:{}", layer * options.tasks / options.layers);
}

void train(const muster::Server& server, const Options& options) {
  muster::Graph graph;
  const muster::Output x = graph.placeholder("x", torch::kFloat, {muster::kBatch, options.width});
  const muster::Output target = graph.placeholder("target", torch::kFloat, {muster::kBatch, options.width});
  muster::Output y = x;
  for (int layer = 0; layer < options.layers; ++layer) {
    const auto scope = graph.name_scope(fmt::format("layer{}", layer));
    const auto device = graph.with_device(device_of(layer, options));
    const double deviation = 1 / std::sqrt(static_cast<double>(options.width));
    const muster::Output initial = ops::mul(
        graph.add("aten::randn", {std::vector<int64_t>{options.width, options.width}}).output(), deviation);
    const muster::Output weight = graph.variable("weight", initial);
    y = ops::add(y, ops::tanh(ops::linear(y, weight)));
  }
  const auto last = graph.with_device(device_of(options.layers - 1, options));
  const muster::Output loss = ops::mse_loss(y, target);
  const muster::Node update = muster::minimize(muster::optim::Adam({.lr = options.lr}), loss);

  const double parameters = options.layers * static_cast<double>(options.width * options.width);
  fmt::print("{} layers, {:.1f} M parameters, {:.0f} MiB with Adam's state, on {} tasks of {} MiB each\n",
             options.layers, parameters / 1e6, 3 * parameters * sizeof(float) / (1 << 20), options.tasks,
             options.memory_limit);
  muster::Session session(server.target(), graph);
  session.run({}, {}, {graph.initializer()});
  const muster::Callable step = session.make_callable({x, target}, {loss}, {update});
  torch::manual_seed(1);
  const torch::Tensor images = torch::rand({options.batch, options.width});
  const torch::Tensor wanted = images.flip(1);
  for (int i = 0; i < options.steps; ++i) {
    const double value = step({images, wanted})[0].item<double>();
    if (i % 10 == 0 || i + 1 == options.steps) fmt::print("step {}: loss {:.4f}\n", i, value);
    std::fflush(stdout);
  }
}

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Trains a model that no task could hold alone"};
  app.add_option("--tasks", options.tasks, "over how many workers it is spread")->capture_default_str();
  app.add_option("--layers", options.layers, "layers of the model")->capture_default_str();
  app.add_option("--width", options.width, "values that a layer has")->capture_default_str();
  app.add_option("--batch", options.batch, "samples a step")->capture_default_str();
  app.add_option("--steps", options.steps, "updates")->capture_default_str();
  app.add_option("--lr", options.lr, "learning rate")->capture_default_str();
  app.add_option("--memory-limit", options.memory_limit, "MiB that the tensors of a task may have")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  try {
    muster::Server server =
        muster::Server::of_environment({.memory_limit = static_cast<size_t>(options.memory_limit) << 20});
    if (server.task() != 0) {
      server.join();
      return 0;
    }
    const auto stop_others = [&server] {
      for (int i = 1; i < static_cast<int>(server.cluster().jobs().at("worker").size()); ++i)
        muster::Server::stop(server.target("worker", i));
    };
    try {
      train(server, options);
    } catch (...) {
      stop_others();
      throw;
    }
    stop_others();
  } catch (const std::exception& error) {
    fmt::print(stderr, "model_parallel: {}\n", error.what());
    return 1;
  }
}
