#pragma once

// What carries a communicator's operations: the native engine (shared memory and links), MPI, or a c10d
// process group. The Communicator owns it, and gives it one collective at a time, in the order of issue, and
// messages beside them.
//
// run() blocks until the operation is done, fails or reaches its deadline. abort(), allocate(), topology()
// and explain() may be called by any thread at any time; split() and share_host() by one at a time.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/collective/group_error.h"
#include "muster/collective/operation.h"
#include "muster/collective/rendezvous.h"
#include "muster/collective/shared_host.h"
#include "muster/collective/topology.h"
#include "muster/deadline.h"

namespace muster::detail {

/// What a rank is doing: the collective that it is in, or the last one that it was in.
struct Activity {
  uint64_t number = 0;  ///< 0: none yet
  std::string operation;
  bool running = false;
  Deadline::Clock::time_point since;  ///< of its start, or of its end
};

/// What a communicator and its engine share.
struct GroupState {
  GroupError error;
  std::function<Activity()> activity;
  std::function<void()> log_history;  ///< this rank's last collectives, once for each that takes too long
};

class Engine {
 public:
  virtual ~Engine() = default;

  /// Runs one operation to its end. Collectives come one at a time; for each peer, at most one send and one
  /// receive come beside them, from other threads. Throws what the group's GroupError says.
  virtual void run(const Operation& operation, uint64_t number, Deadline deadline) = 0;

  /// Memory for operations that is best for this engine.
  virtual std::shared_ptr<void> allocate(size_t bytes) = 0;

  /// An engine for some of the group's ranks: `members` in the new order, of which we are number `rank`.
  /// `rendezvous` is that of the members.
  virtual std::unique_ptr<Engine> split(const std::string& name, const std::vector<int>& members, int rank,
                                        const Rendezvous& rendezvous, GroupState& state) = 0;

  /// Tells the other ranks that the group is broken, and why, as far as they can still be told.
  virtual void abort(const std::string& reason) = 0;

  virtual const Topology& topology() const = 0;

  /// The host's memory, as far as this engine shares it: of a rank alone, unless it says otherwise.
  virtual std::unique_ptr<SharedHost> share_host(Communicator& communicator);

  /// How an operation of this size would be carried out, for people: "direct through shared memory".
  virtual std::string explain(const Operation& operation) const = 0;
};

}  // namespace muster::detail
