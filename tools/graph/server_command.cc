#include "graph/server_command.h"

#include <pthread.h>
#include <signal.h>

#include <optional>
#include <string>
#include <thread>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/task_name.h"
#include "muster/server.h"

namespace muster::detail {

struct ServerCommand::Impl {
  CLI::App* app = nullptr;
  std::string cluster;
  std::string job;
  std::string task;
  std::string stop;
};

ServerCommand::ServerCommand(CLI::App& parent) : impl_(std::make_unique<Impl>()) {
  impl_->app = parent.add_subcommand("server", "a task of a cluster that runs graphs, or stop one");
  impl_->app->add_option("--cluster", impl_->cluster,
                         "the tasks and where each listens: ps=h1:2222;worker=h2:2222,h3:2222, or JSON");
  impl_->app->add_option("--job", impl_->job, "the job of this task: ps");
  impl_->app->add_option("--task", impl_->task, "which of its tasks this is, from 0; or both: ps/0");
  impl_->app->add_option("--stop", impl_->stop, "stop the server of this target: grpc://h1:2222");
  impl_->app->footer(
      "All tasks and clients need the same secret, in MUSTER_SECRET: a client's graph can run any operator\n"
      "with the rights of the server's user. Without --cluster, a task is what its launcher says\n"
      "(MUSTER_CLUSTER and MUSTER_TASK, or TF_CONFIG).\n\n"
      "  MUSTER_SECRET=... muster server --cluster 'ps=h1:2222;worker=h2:2222' --job ps --task 0\n"
      "  MUSTER_SECRET=... muster server --stop grpc://h1:2222");
}

ServerCommand::~ServerCommand() = default;

bool ServerCommand::chosen() const {
  return impl_->app->parsed();
}

namespace {

Server start(const std::string& cluster, const std::string& job, const std::string& task) {
  if (cluster.empty()) {
    if (!job.empty() || !task.empty())
      raise<InvalidArgument>("--job and --task say which task of a cluster this is: --cluster is missing");
    return Server::of_environment();
  }
  const bool is_number = !task.empty() && task.find_first_not_of("0123456789") == std::string::npos;
  if (task.empty() || (job.empty() && is_number))
    raise<InvalidArgument>(
        "--cluster needs to know which of its tasks this is: --job ps --task 0, or --task "
        "ps/0");
  if (!job.empty() && !is_number)
    raise<InvalidArgument>("--task {} is no number of a task of --job {}", task, job);
  const TaskName name = TaskName::parse(is_number ? fmt::format("{}/{}", job, task) : task);
  if (!name.job || !name.task) raise<InvalidArgument>("--task {} names no task", task);
  return {ClusterSpec::parse(cluster), *name.job, *name.task};
}

}  // namespace

int ServerCommand::run() {
  if (!impl_->stop.empty()) {
    if (!impl_->cluster.empty() || !impl_->job.empty() || !impl_->task.empty())
      raise<InvalidArgument>("--stop takes the target alone: leave --cluster, --job and --task out");
    Server::stop(impl_->stop);
    return 0;
  }
  // All threads leave these two to the one that waits for them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  Server server = start(impl_->cluster, impl_->job, impl_->task);
  fmt::print(stderr, "serving at {}\n", server.target());
  std::thread waiting([&] {
    int number = 0;
    sigwait(&signals, &number);
    server.stop();
  });
  server.join();
  pthread_kill(waiting.native_handle(), SIGTERM);
  waiting.join();
  fmt::print(stderr, "stopped\n");
  return 0;
}

}  // namespace muster::detail
