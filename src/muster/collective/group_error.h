#pragma once

// What broke a group of ranks. The first error stays: pending and later operations throw it.
// Thread-safe; raised() is a relaxed load, cheap enough for a loop that spins.

#include <atomic>
#include <string>

#include "muster/base/mutex.h"
#include "muster/deadline.h"

namespace muster::detail {

class GroupError {
 public:
  enum class Kind { kPeerLost, kDeadline, kMismatch, kAborted };

  /// Returns false when something had failed before.
  bool set(Kind kind, const std::string& message);

  /// Waits until something has failed, and says whether it has by the deadline.
  bool wait_raised(Deadline deadline) const;

  bool raised() const { return raised_.load(std::memory_order_relaxed); }

  /// Throws PeerLost, DeadlineExceeded, InvalidArgument (a mismatch) or Aborted when raised.
  /// `during` is what the caller was doing, for the message.
  void check(const std::string& during) const;

  /// What failed; "" while nothing has.
  std::string message() const;

  /// How it failed; kAborted while nothing has.
  Kind kind() const;

  /// Sets the error, or finds an earlier one, and throws it.
  [[noreturn]] void fail(Kind kind, const std::string& message, const std::string& during);

 private:
  std::atomic<bool> raised_{false};
  mutable Mutex mutex_;
  mutable ConditionVariable changed_;
  Kind kind_ MUSTER_GUARDED_BY(mutex_) = Kind::kAborted;
  std::string message_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::detail
