#pragma once

// Events that other threads bring to the one that works on a server's store. They ring its doorbell.
// Thread-safe.

#include <atomic>
#include <exception>
#include <memory>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/ps/policy/update_policy.h"
#include "muster/ps/server/session.h"

namespace muster::detail {

class EventQueue {
 public:
  struct Failure {  ///< of this incarnation of a worker, or of an earlier one
    int worker = 0;
    int incarnation = 0;
  };
  struct Events {
    std::vector<std::shared_ptr<Session>> new_sessions;
    std::vector<Failure> failures;
    std::vector<Command> commands;  ///< of the leader
  };

  explicit EventQueue(Doorbell& doorbell) : doorbell_(doorbell) {}

  void put(std::shared_ptr<Session> session);
  void put(Failure failure);
  void put(Command command);

  /// A thread could not go on.
  void put(std::exception_ptr error);

  bool empty() const { return count_.load() == 0; }

  /// Throws what a thread failed with.
  Events take();

  /// Those that have not been taken.
  std::vector<std::shared_ptr<Session>> new_sessions() const;

 private:
  template <typename Change>
  void change(const Change& change);

  Doorbell& doorbell_;
  std::atomic<uint64_t> count_{0};
  mutable Mutex mutex_;
  Events events_ MUSTER_GUARDED_BY(mutex_);
  std::exception_ptr error_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::detail
