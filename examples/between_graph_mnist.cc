// Trains a small net on MNIST by between-graph replication: each worker is a client with the same graph, its
// variables are on the parameter servers, and each worker applies its gradients there as soon as it has them,
// or, with --sync, together with those of the others.
//
//   muster run --workers 2 --ps 1 --strategy none -- between_graph_mnist
//   muster run --workers 2 --ps 1 --strategy none -- between_graph_mnist --sync

#include "examples/mnist_data.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <torch/torch.h>

#include "muster/graph.h"
#include "muster/monitored_session.h"
#include "muster/ops.h"
#include "muster/server.h"
#include "muster/shard.h"
#include "muster/sync_replicas.h"
#include "muster/trace.h"

struct Flags {
  int64_t steps = 1000;
  int64_t batch = 32;
  double lr = 0.1;
  bool sync = false;
  int replicas_to_aggregate = 0;
  std::string folder;
};

torch::nn::Sequential make_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(784, 128), torch::nn::ReLU(),
                               torch::nn::Linear(128, 10));
}

void train(const muster::Server& server, const Flags& flags) {
  muster::Graph graph;
  muster::TracedModule net;
  muster::Output labels, loss, step;
  {
    const auto& jobs = server.cluster().jobs();
    const auto device = graph.with_device(
        muster::replica_device_setter({.ps_tasks = static_cast<int>(jobs.at("ps").size()),
                                       .worker_device = fmt::format("/job:worker/task:{}", server.task())}));
    auto module = make_net();
    net = muster::trace(graph, module, {torch::zeros({2, 1, 28, 28})});
    labels = graph.placeholder("labels", torch::kLong, {muster::kBatch});
    loss = muster::ops::cross_entropy_loss(net.outputs[0], labels);
    const muster::optim::SGD optimizer({.lr = flags.lr});
    // Falls to nothing with the last step: the end depends less on whose gradients come last.
    const muster::Output done =
        muster::ops::div(muster::global_step(graph), static_cast<double>(flags.steps));
    const muster::Output lr = muster::ops::mul(muster::ops::relu(muster::ops::rsub(done, 1.0)), flags.lr);
    if (flags.sync) {
      step = muster::minimize_synchronously(graph, optimizer, loss,
                                            {.replicas_to_aggregate = flags.replicas_to_aggregate,
                                             .total_num_replicas = static_cast<int>(jobs.at("worker").size()),
                                             .replica = server.task()},
                                            lr);
    } else {
      step = muster::count_step(graph, muster::minimize(optimizer, loss, lr));
    }
  }

  const auto training = examples::load_mnist(flags.folder, /*train=*/true);
  const auto test = examples::load_mnist(flags.folder, /*train=*/false);
  const auto workers = static_cast<int>(server.cluster().jobs().at("worker").size());
  const muster::Shard shard(training.size(), {.rank = server.task(), .size = workers});

  muster::MonitoredSession session(server, graph,
                                   {.step = step,
                                    .last_step = flags.steps,
                                    .chief_hooks = {muster::log_values({{"loss", loss}}, {.steps = 100})}});
  for (int64_t epoch = 0; !session.should_stop(); ++epoch) {
    for (const torch::Tensor& index : shard.epoch(epoch, flags.batch)) {
      if (session.should_stop()) break;
      session.run({}, {{net.inputs[0], training.images.index_select(0, index)},
                       {labels, training.labels.index_select(0, index)}});
    }
  }
  if (session.is_chief()) {
    const torch::Tensor scores = session.evaluate({net.outputs[0]}, {{net.inputs[0], test.images}}).front();
    const double accuracy = scores.argmax(1).eq(test.labels).to(torch::kDouble).mean().item<double>();
    fmt::print("after {} steps: accuracy {:.2f} %\n", session.step(), 100 * accuracy);
    std::fflush(stdout);
  }
}

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app{"Trains a small net on MNIST: each worker is a client of its own"};
  app.add_option("--steps", flags.steps, "steps of all workers together")->capture_default_str();
  app.add_option("--batch", flags.batch, "samples a step")->capture_default_str();
  app.add_option("--lr", flags.lr, "learning rate of the first step; that of the last is 0")
      ->capture_default_str();
  app.add_flag("--sync", flags.sync, "average the gradients of the workers, and apply them together");
  app.add_option("--replicas-to-aggregate", flags.replicas_to_aggregate,
                 "with --sync: how many gradients make a step; default: one of each worker");
  app.add_option("--data", flags.folder,
                 "folder with the IDX files; default: the fetched set, else the shipped subset");
  CLI11_PARSE(app, argc, argv);
  if (flags.folder.empty()) flags.folder = examples::fetched_mnist().value_or(MUSTER_SHIPPED_MNIST);

  try {
    muster::Server server = muster::Server::of_environment();
    if (server.job() == "worker") {
      train(server, flags);
    } else {
      server.join();
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "between_graph_mnist: {}\n", error.what());
    return 1;
  }
}
