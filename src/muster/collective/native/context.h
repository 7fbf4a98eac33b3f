#pragma once

// One operation as the native engine's parts see it while it runs. It lives on the stack of the thread that
// runs the operation, and refers to what the engine owns.

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

/// What a rank knows of the others beside an operation.
class Peers {
 public:
  virtual ~Peers() = default;

  /// A rank that has left by its own will, a while ago: what it sent before has come by now.
  virtual bool given_up(int rank) const = 0;

  /// The same, just now.
  virtual bool left(int rank) const = 0;

  /// Waits until it is known that this rank has left or died, or that the group has failed; at most to the
  /// deadline.
  virtual void wait_gone(int rank, Deadline deadline) = 0;

  /// Asks all, and gives those who are not in the collective of this number yet, or do not answer.
  virtual std::vector<int> absent(uint64_t number) = 0;
};

struct Context {
  const Operation& called;     ///< what the user called
  const Operation& operation;  ///< what is being done of it: all, or a piece of it
  uint64_t number;             ///< its place in the order of issue
  Deadline deadline;
  Failure& failure;
  const std::string& group;
  const std::vector<RankInfo>& ranks;
  Peers& peers;

  /// The same, for a piece of it.
  Context with(const Operation& piece) const {
    return {called, piece, number, deadline, failure, group, ranks, peers};
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
      if (peers.given_up(rank))
        failure.fail(Failure::Kind::kPeerLost, describe(rank) + " has left the group", during());
    }
    if (deadline.expired()) give_up(waited_for);
  }

  /// At the deadline: names those that are to blame. Those that we wait for may be waiting for others.
  [[noreturn]] void give_up(const std::vector<int>& waited_for) const;

  /// The connection to this rank broke.
  [[noreturn]] void lost(int rank, const std::string& how) const;
};

}  // namespace muster
