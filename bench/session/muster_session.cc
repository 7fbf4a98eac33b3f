// One task of Muster for `muster bench session`: muster_bench_session DIR CASE OF, alone or under `muster
// run`, which says which task of the cluster it is. bench/session/subjects.h has the cases.

#include <cstdio>
#include <stdexcept>

#include "bench/session/work.h"

namespace muster::detail::bench::session {
namespace {

constexpr int64_t kCnnBatch = 64;         // of the convolutional net
constexpr int64_t kReplicaBatch = 32;     // of each replica
constexpr int64_t kPipelineBatch = 4096;  // large enough that computing is what takes the time

struct Task {
  std::string directory;
  std::string name;  // of the case
  std::string of;    // which of that name
};

std::unique_ptr<TimedWork> make_work(const Task& task, const Server& server) {
  if (task.name == "step") return make_empty_step(server);
  if (task.name == "transfer") return make_transfer(server, std::stoll(task.of));
  if (task.name == "graph") return make_large_graph(server, std::stoll(task.of));
  throw std::invalid_argument("there is no case '" + task.name + "'");
}

void serve(TrainWorker& worker, const Task& task, int rank) {
  serve_training(worker, task.directory, rank);
}

// Task 0 is the client too; the others only serve it.
void run_on_cluster(const Task& task) {
  Server server = Server::of_environment();
  if (task.name == "replicas") {
    if (server.job() == "ps") return server.join();
    return serve(*make_replica(server, task.of, kReplicaBatch), task, server.task());
  }
  if (server.task() != 0) return serve_idle(task.directory, server.task());
  if (task.name == "pipeline") return serve(*make_pipeline(server, task.of, kPipelineBatch), task, 0);
  serve_timed(*make_work(task, server), task.directory, 0);
}

void run(const Task& task) {
  if (task.name == "operators") return serve_timed(*make_operators(), task.directory, 0);
  if (task.name == "executor") return serve_timed(*make_empty_nodes(task.of), task.directory, 0);
  if (task.name == "cnn") return serve(*make_local_training("b", kCnnBatch), task, 0);
  run_on_cluster(task);
}

}  // namespace
}  // namespace muster::detail::bench::session

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: muster_bench_session DIR CASE OF\n", stderr);
    return 2;
  }
  try {
    muster::detail::bench::session::run({.directory = argv[1], .name = argv[2], .of = argv[3]});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "muster_bench_session: %s\n", error.what());
    return 1;
  }
}
