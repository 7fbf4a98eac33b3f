#pragma once

// The other servers, as the leader sees them. One thread uses it. What blocks calls `check` now and then,
// which may throw. A follower that is gone is DataLoss: its parameters are gone with it.

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "muster/net/endpoint.h"
#include "muster/ps/policy/update_policy.h"
#include "muster/ps/server_address.h"

namespace muster::detail {

class Followers {
 public:
  struct Options {
    Endpoint& endpoint;  ///< outlives this
    std::string job_id;
    std::string model_id;
    int servers = 1;             ///< with the leader
    bool adds_up_norms = false;  ///< add_up() will be called
    std::chrono::milliseconds join_timeout{0};
    std::function<ServerAddress(int server, Deadline deadline)> find_server;
    std::function<void()> check;
  };

  explicit Followers(Options options) : options_(std::move(options)) {}

  /// Connects to all. Throws DeadlineExceeded.
  void reach();

  void send(const Command& command);

  /// Makes these the sums of what all servers have, in the order of the servers. Blocks until all have come.
  void add_up(std::span<double> numbers);

  /// Throws when the link to one is closed. Does not block.
  void check_links() const;

 private:
  struct Follower {
    Connection commands;
    Connection sums;
  };

  [[noreturn]] void raise_gone(const Follower& follower, const std::string& why) const;

  const Options options_;
  std::vector<Follower> followers_;
  std::vector<double> received_;
  uint64_t sums_ = 0;
};

}  // namespace muster::detail
