#pragma once

// One operation as the native engine's parts see it while it runs.

#include <atomic>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "muster/base/deadline.h"
#include "muster/collective/failure.h"
#include "muster/collective/operation.h"

namespace muster {

/// Who a rank is, for messages: "rank 2 (host b, pid 4711)".
struct RankInfo {
  std::string host_name;
  std::string host_identity;  // equal for ranks that may share memory
  std::string machine;        // equal for ranks that compete for the same cores
  int64_t pid = 0;
  std::string address;     // of its data port
  std::string local_name;  // the same for peers on its host
  std::string token;       // made anew for each communicator
};

/// Which ranks have left the group, by their own will. What they sent before may still be on its way, so they
/// are given up only after a while.
class Departures {
 public:
  explicit Departures(size_t ranks) : left_(ranks) {}

  void mark(int rank) {
    left_[static_cast<size_t>(rank)] = Deadline::Clock::now().time_since_epoch().count();
  }
  bool given_up(int rank) const {
    const auto when = left_[static_cast<size_t>(rank)].load();
    return when != 0 && Deadline::Clock::now().time_since_epoch() - Deadline::Clock::duration(when) >
                            std::chrono::milliseconds(500);
  }

 private:
  std::vector<std::atomic<Deadline::Clock::rep>> left_;
};

struct Context {
  const Operation& called;     ///< what the user called
  const Operation& operation;  ///< what is being done of it: all, or a piece of it
  uint64_t number;             ///< its place in the order of issue
  Deadline deadline;
  Failure& failure;
  const std::string& group;
  const std::vector<RankInfo>& ranks;
  const Departures& departures;

  /// The same, for a piece of it.
  Context with(const Operation& piece) const {
    return {called, piece, number, deadline, failure, group, ranks, departures};
  }

  std::string during() const { return fmt::format("{} number {} of {}", called.to_string(), number, group); }

  std::string describe(int rank) const {
    const RankInfo& info = ranks[static_cast<size_t>(rank)];
    return fmt::format("rank {} (host {}, pid {})", rank, info.host_name, info.pid);
  }

  /// Throws what has failed, or at the deadline; `missing()` gives the ranks that are waited for.
  template <typename Missing>
  void check(const Missing& missing) const {
    if (failure.raised()) failure.check(during());
    const std::vector<int> waited_for = missing();
    for (const int rank : waited_for) {
      if (departures.given_up(rank))
        failure.fail(Failure::Kind::kPeerLost, describe(rank) + " has left the group", during());
    }
    if (!deadline.expired()) return;
    std::string names;
    for (const int rank : waited_for) names += (names.empty() ? "" : ", ") + describe(rank);
    failure.fail(Failure::Kind::kDeadline, names + " did not come in time", during());
  }
};

}  // namespace muster
