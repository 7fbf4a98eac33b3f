// Two tasks, and a constant that comes from the other one: the first program of many who learned to
// distribute graphs with TensorFlow. Start it twice, in two terminals, with the same secret:
//
//   MUSTER_SECRET=mine hello_session 0
//   MUSTER_SECRET=mine hello_session 1
//
// The first waits for the second, and says so; it prints where each node is, and the greeting. The second
// serves until it is stopped: by Ctrl-C, or by `MUSTER_SECRET=mine muster server --stop
// grpc://localhost:2223`.

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <torch/torch.h>

#include "muster/graph.h"
#include "muster/ops.h"
#include "muster/server.h"
#include "muster/session.h"

int main(int argc, char** argv) {
  int task = 0;
  std::vector<std::string> addresses = {"localhost:2222", "localhost:2223"};
  CLI::App app{"Two tasks, and a constant that comes from the other one"};
  app.add_option("task", task, "which of the two tasks this is")->check(CLI::Range(0, 1))->required();
  app.add_option("--addresses", addresses, "where the two listen")->expected(2)->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  try {
    const muster::ClusterSpec cluster{{"local", addresses}};
    muster::Server server(cluster, "local", task);
    if (task == 1) {
      server.join();
      return 0;
    }

    muster::Graph graph;
    muster::Output hello;
    {
      const auto other_task = graph.with_device("/job:local/task:1");
      hello = graph.constant(torch::arange(1, 6), "hello");
    }
    const muster::Output squared = muster::ops::mul(hello, hello).named("squared");

    muster::Session session(server.target(), graph, {.log_device_placement = true});
    const torch::Tensor result = session.run({squared}).front();
    fmt::print("the squares of what task 1 has:");
    for (int64_t i = 0; i < result.numel(); ++i) fmt::print(" {}", result[i].item<int64_t>());
    fmt::print("\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "hello_session: {}\n", error.what());
    return 1;
  }
}
