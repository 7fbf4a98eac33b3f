#include "graph/server_command.h"

#include <pthread.h>
#include <signal.h>

#include <optional>
#include <string>
#include <thread>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/base/config.h"
#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/base/task_name.h"
#include "muster/base/text.h"
#include "muster/server.h"

namespace muster::detail {

struct ServerCommand::Impl {
  CLI::App* app = nullptr;
  std::string cluster;
  std::string job;
  std::string task;
  std::string stop;
  std::string memory_limit;
  std::string client_silence;
};

ServerCommand::ServerCommand(CLI::App& parent) : impl_(std::make_unique<Impl>()) {
  impl_->app = parent.add_subcommand("server", "a task of a cluster that runs graphs, or stop one");
  impl_->app->add_option("--cluster", impl_->cluster,
                         "the tasks and where each listens: ps=h1:2222;worker=h2:2222,h3:2222, or JSON");
  impl_->app->add_option("--job", impl_->job, "the job of this task: ps");
  impl_->app->add_option("--task", impl_->task, "which of its tasks this is, from 0; or both: ps/0");
  impl_->app->add_option("--stop", impl_->stop, "stop the server of this target: grpc://h1:2222");
  impl_->app->add_option(
      "--memory-limit", impl_->memory_limit,
      "how many bytes the tensors of this task may have: 512M (default: as many as there are)");
  impl_->app->add_option("--client-silence", impl_->client_silence,
                         "how long a client may answer nothing until what it has here goes (default: 1m)");
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

Server start(const std::string& cluster, const std::string& job, const std::string& task,
             const Server::Options& options) {
  if (cluster.empty()) {
    if (!job.empty() || !task.empty())
      raise<InvalidArgument>("--job and --task say which task of a cluster this is: --cluster is missing");
    return Server::of_environment(options);
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
  return {ClusterSpec::parse(cluster), *name.job, *name.task, options};
}

Server::Options options_of(const std::string& memory_limit, const std::string& client_silence) {
  Server::Options options;
  Config config;
  config.read_environment(Environment::of_process());
  options.shared_memory = config.shared_memory;
  if (!memory_limit.empty()) {
    const auto bytes = parse_bytes(memory_limit);
    if (!bytes || *bytes == 0)
      raise<InvalidArgument>("--memory-limit {} is no number of bytes: 4096, 512M, 2G", memory_limit);
    options.memory_limit = *bytes;
  }
  if (!client_silence.empty()) {
    const auto silence = parse_duration(client_silence);
    if (!silence || silence->count() <= 0)
      raise<InvalidArgument>("--client-silence {} is no time: 500ms, 30s, 5m", client_silence);
    options.client_silence = *silence;
  }
  return options;
}

}  // namespace

int ServerCommand::run() {
  if (!impl_->stop.empty()) {
    for (const auto* other : {"--cluster", "--job", "--task", "--memory-limit", "--client-silence"}) {
      if (impl_->app->count(other) > 0)
        raise<InvalidArgument>("--stop takes the target alone: leave {} out", other);
    }
    Server::stop(impl_->stop);
    return 0;
  }
  const Server::Options options = options_of(impl_->memory_limit, impl_->client_silence);
  // All threads leave these two to the one that waits for them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  Server server = start(impl_->cluster, impl_->job, impl_->task, options);
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
