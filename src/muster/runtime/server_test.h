#pragma once

// A cluster for tests.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "muster/net/reserved_port.h"
#include "muster/server.h"

namespace muster {

/// Tasks of the job "task", all in this process.
class TestServers {
 public:
  explicit TestServers(int tasks, bool start = true, Server::Options options = {.secret = "test"})
      : options_(std::move(options)) {
    std::vector<std::string> addresses;
    for (int i = 0; i < tasks; ++i) {
      ports_.emplace_back("127.0.0.1");
      addresses.push_back(fmt::format("127.0.0.1:{}", ports_.back().port()));
    }
    spec_.emplace(ClusterSpec::Jobs{{"task", addresses}});
    servers_.resize(static_cast<size_t>(tasks));
    for (int i = 0; start && i < tasks; ++i) this->start(i);
  }

  void start(int task) {
    servers_[static_cast<size_t>(task)] = std::make_unique<Server>(*spec_, "task", task, options_);
  }
  void kill(int task) { servers_[static_cast<size_t>(task)].reset(); }

  std::string target(int task = 0) const {
    return fmt::format("grpc://127.0.0.1:{}", ports_[static_cast<size_t>(task)].port());
  }

 private:
  const Server::Options options_;
  std::vector<detail::ReservedPort> ports_;
  std::optional<ClusterSpec> spec_;
  std::vector<std::unique_ptr<Server>> servers_;
};

}  // namespace muster
