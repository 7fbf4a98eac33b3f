#pragma once

// One operation as the native engine's parts see it while it runs. It lives on the stack of the thread that
// runs the operation, and refers to what the engine owns.

#include <string>
#include <vector>

#include <fmt/format.h>

#include "muster/base/wait_registry.h"
#include "muster/collective/group_error.h"
#include "muster/collective/native/peers.h"
#include "muster/collective/native/rank_info.h"
#include "muster/collective/operation.h"
#include "muster/deadline.h"

namespace muster::detail {

/// The wait of an operation for other ranks, and for which.
struct OperationWait {
  std::vector<int> ranks;
  WaitInProgress* wait = nullptr;
};

struct OperationContext {
  const Operation& called;     ///< what the user called
  const Operation& operation;  ///< what is being done of it: all, or one pass over a part of it
  uint64_t number;             ///< of it in the order of issue
  Deadline deadline;
  GroupError& error;
  const std::string& group;
  const std::vector<RankInfo>& ranks;
  Peers& peers;
  OperationWait* wait = nullptr;  ///< of the whole operation, where somebody wants to know of it

  /// The same, for one pass.
  OperationContext with(const Operation& pass) const {
    return {called, pass, number, deadline, error, group, ranks, peers, wait};
  }

  std::string during() const { return fmt::format("{} number {} of {}", called.to_string(), number, group); }

  std::string describe(int rank) const { return ranks[static_cast<size_t>(rank)].to_string(); }

  /// Throws what has failed, or at the deadline; `missing()` gives the ranks that are waited for. One of them
  /// that has left will not come any more, unless has_connection(rank): what it sent may be on its way, and
  /// the connection closes behind it.
  template <typename Missing, typename HasConnection>
  void check(const Missing& missing, const HasConnection& has_connection) const {
    if (error.raised()) error.check(during());
    const std::vector<int> waited_for = missing();
    for (const int rank : waited_for) {
      if (!has_connection(rank) && peers.given_up(rank))
        error.fail(GroupError::Kind::kPeerLost, describe(rank) + " has left the group", during());
    }
    if (deadline.expired()) give_up(waited_for);
    if (wait == nullptr) return;
    wait->ranks = waited_for;
    wait->wait->look();
  }

  /// Without connections: what a rank did before it left is there to see.
  template <typename Missing>
  void check(const Missing& missing) const {
    check(missing, [](int) { return false; });
  }

  /// At the deadline: names those that are to blame. Those that we wait for may be waiting for others.
  [[noreturn]] void give_up(const std::vector<int>& waited_for) const;

  /// The connection to this rank broke: throws PeerLost.
  [[noreturn]] void connection_broke(int rank, const std::string& how) const;
};

}  // namespace muster::detail
