#pragma once

// The leader, as a follower sees it. One thread follows, another adds up and asks whether the leader is
// there.

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "muster/net/endpoint.h"
#include "muster/ps/policy/update_policy.h"

namespace muster::detail {

class LeaderLink {
 public:
  struct Options {
    Endpoint& endpoint;  ///< outlives this
    std::string job_id;
    std::string model_id;
    std::function<void()> check;  ///< called now and then while something waits; may throw
  };

  explicit LeaderLink(Options options) : options_(std::move(options)) {}

  /// Waits for the leader, and gives its commands to `take`, until it is gone.
  void follow(const std::function<void(Command command)>& take);

  /// Whether it may still send commands: false once it was here and is gone.
  bool is_there() const { return is_there_.load(); }

  /// Makes these the sums of what all servers have. Blocks until the leader has them. Throws PeerLost.
  void add_up(std::span<double> numbers);

 private:
  const Options options_;
  std::atomic<bool> is_there_{true};
  std::optional<Connection> sums_link_;
  uint64_t sums_ = 0;
};

}  // namespace muster::detail
