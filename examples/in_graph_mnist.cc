// Trains a small net on MNIST by in-graph replication: one client, one graph, variables on the parameter
// servers, a replica of the model on each worker, and the average of their gradients.
//
//   muster run --workers 2 --ps 1 --strategy none -- in_graph_mnist
//
// Every task is a server. Worker 0 is also the client: it builds the graph, runs it, and stops the others.

#include "examples/mnist_data.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <torch/torch.h>

#include "muster/graph.h"
#include "muster/ops.h"
#include "muster/server.h"
#include "muster/session.h"

namespace ops = muster::ops;
using muster::Graph;
using muster::Output;

struct Weights {
  Output w1, b1, w2, b2;

  explicit Weights(Graph& graph)
      : w1(graph.variable("w1", torch::randn({128, 784}) * std::sqrt(2.0 / 784))),
        b1(graph.variable("b1", torch::zeros({128}))),
        w2(graph.variable("w2", torch::randn({10, 128}) * std::sqrt(2.0 / 128))),
        b2(graph.variable("b2", torch::zeros({10}))) {}

  std::vector<Output> all() const { return {w1, b1, w2, b2}; }

  Output forward(const Output& images) const {
    const Output hidden = ops::relu(ops::linear(ops::flatten(images, 1), w1, b1));
    return ops::linear(hidden, w2, b2);
  }
};

// What a worker is fed, and what it makes of it.
struct Replica {
  Output images, labels, loss;
  std::vector<Output> gradients;
};

struct Settings {
  int epochs = 5;
  int64_t batch = 32;
  double lr = 0.05;
  std::string folder;
  std::string graph_file;
};

void train(const muster::Server& server, const Settings& settings) {
  const int64_t batch = settings.batch;
  const auto& jobs = server.cluster().jobs();
  const auto workers = static_cast<int>(jobs.at("worker").size());
  const int servers = jobs.contains("ps") ? static_cast<int>(jobs.at("ps").size()) : 0;

  torch::manual_seed(1);
  Graph graph;
  const Weights weights = [&] {
    if (servers == 0) return Weights(graph);
    const auto ps = graph.with_device(muster::replica_device_setter({.ps_tasks = servers}));
    return Weights(graph);
  }();

  std::vector<Replica> replicas;
  for (int worker = 0; worker < workers; ++worker) {
    const auto device = graph.with_device(fmt::format("/job:worker/task:{}", worker));
    const auto scope = graph.name_scope(fmt::format("replica{}", worker));
    Replica replica;
    replica.images = graph.placeholder("images", torch::kFloat, {muster::kBatch, 1, 28, 28});
    replica.labels = graph.placeholder("labels", torch::kLong, {muster::kBatch});
    replica.loss = ops::cross_entropy_loss(weights.forward(replica.images), replica.labels);
    replica.gradients = muster::gradients({replica.loss}, weights.all());
    replicas.push_back(replica);
  }

  std::vector<Output> averages;
  for (size_t i = 0; i < weights.all().size(); ++i) {
    std::vector<Output> each;
    for (const auto& replica : replicas) each.push_back(replica.gradients[i]);
    averages.push_back(ops::mean(ops::stack(each), std::vector<int64_t>{0}));
  }
  const muster::Node step = muster::apply_gradients(muster::optim::SGD({.lr = settings.lr, .momentum = 0.9}),
                                                    averages, weights.all());
  const Output test_images = graph.placeholder("test", torch::kFloat, {muster::kBatch, 1, 28, 28});
  const Output guesses = ops::argmax(weights.forward(test_images), 1);

  if (!settings.graph_file.empty()) graph.save(settings.graph_file);  // for `muster graph`
  muster::Session session(server.target(), graph);
  session.run({}, {}, {graph.initializer()});

  std::vector<Output> feeds;
  std::vector<Output> losses;
  for (const auto& replica : replicas) {
    feeds.insert(feeds.end(), {replica.images, replica.labels});
    losses.push_back(replica.loss);
  }
  const muster::Callable train_step = session.make_callable(feeds, losses, {step});

  const auto training = examples::load_mnist(settings.folder, /*train=*/true);
  const auto test = examples::load_mnist(settings.folder, /*train=*/false);
  for (int epoch = 0; epoch < settings.epochs; ++epoch) {
    const torch::Tensor order = torch::randperm(training.size());
    double loss = 0;
    int64_t steps = 0;
    for (int64_t at = 0; at + workers * batch <= training.size(); at += workers * batch) {
      std::vector<torch::Tensor> values;
      for (int worker = 0; worker < workers; ++worker) {
        const torch::Tensor mine = order.slice(0, at + worker * batch, at + (worker + 1) * batch);
        values.push_back(training.images.index_select(0, mine));
        values.push_back(training.labels.index_select(0, mine));
      }
      for (const auto& each : train_step(values)) loss += each.item<double>() / workers;
      ++steps;
    }
    const torch::Tensor guessed = session.run({guesses}, {{test_images, test.images}}).front();
    const double accuracy = guessed.eq(test.labels).to(torch::kDouble).mean().item<double>();
    fmt::print("epoch {}: loss {:.4f}, accuracy {:.2f} %\n", epoch + 1, loss / static_cast<double>(steps),
               100 * accuracy);
    std::fflush(stdout);
  }

  for (const auto& [job, tasks] : jobs) {
    for (int task = 0; task < static_cast<int>(tasks.size()); ++task) {
      if (job != server.job() || task != server.task()) muster::Server::stop(server.target(job, task));
    }
  }
}

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app{"Trains a small net on MNIST: one graph, with a replica on each worker"};
  app.add_option("--epochs", settings.epochs, "passes over the training set")->capture_default_str();
  app.add_option("--batch", settings.batch, "samples a step, of each worker")->capture_default_str();
  app.add_option("--lr", settings.lr, "learning rate")->capture_default_str();
  app.add_option("--data", settings.folder,
                 "folder with the IDX files; default: the fetched set, else the shipped subset");
  app.add_option("--save-graph", settings.graph_file, "keep the graph in this file, to look at it");
  CLI11_PARSE(app, argc, argv);
  if (settings.folder.empty()) settings.folder = examples::fetched_mnist().value_or(MUSTER_SHIPPED_MNIST);

  try {
    muster::Server server = muster::Server::of_environment();
    if (server.job() == "worker" && server.task() == 0) {
      train(server, settings);
    } else {
      server.join();
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "in_graph_mnist: {}\n", error.what());
    return 1;
  }
}
