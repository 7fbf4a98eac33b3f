#pragma once

// Tasks of the job "task", each a `muster server`, on this host or on several.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "muster/net/reserved_port.h"
#include "muster/testing/hosts.h"
#include "muster/testing/process_cluster.h"

namespace muster::detail::testing {

class ServerProcesses {
 public:
  struct Options {
    std::vector<std::string> flags;
    std::map<std::string, std::string> environment;
    const Hosts* hosts = nullptr;  ///< one for each task; none: all run here
  };

  explicit ServerProcesses(int tasks) : ServerProcesses(tasks, Options()) {}
  ServerProcesses(int tasks, Options options) : options_(std::move(options)) {
    for (int i = 0; i < tasks; ++i) {
      ports_.emplace_back("127.0.0.1");
      cluster_ += fmt::format("{}{}", i == 0 ? "task=" : ",", address(i));
    }
    processes_.resize(static_cast<size_t>(tasks), -1);
    for (int i = 0; i < tasks; ++i) start(i);
  }

  void start(int task) {
    std::vector<std::string> command = {
        beside_self("muster"), "server", "--cluster", cluster_, "--job", "task", "--task",
        std::to_string(task)};
    command.insert(command.end(), options_.flags.begin(), options_.flags.end());
    if (options_.hosts != nullptr) command = options_.hosts->on(task, command);
    auto environment = options_.environment;
    environment.insert({{"MUSTER_SECRET", "test"}, {"OMP_NUM_THREADS", "1"}});
    processes_[static_cast<size_t>(task)] = cluster.start({.command = command, .environment = environment});
    cluster.wait_for_output(process(task), "serving at " + target(task), soon());
  }

  int process(int task) const { return processes_[static_cast<size_t>(task)]; }
  std::string target(int task) const { return "grpc://" + address(task); }

  ProcessCluster cluster;

 private:
  std::string address(int task) const {
    return fmt::format("{}:{}", options_.hosts == nullptr ? "127.0.0.1" : options_.hosts->address(task),
                       ports_[static_cast<size_t>(task)].port());
  }

  const Options options_;
  std::vector<ReservedPort> ports_;
  std::string cluster_;
  std::vector<int> processes_;
};

}  // namespace muster::detail::testing
