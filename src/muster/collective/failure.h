#pragma once

// What broke a communicator. The first failure stays: pending and later operations throw it.
// Thread-safe; raised() is a relaxed load, cheap enough for a loop that spins.

#include <atomic>
#include <string>

#include "muster/base/mutex.h"

namespace muster {

class Failure {
 public:
  enum class Kind { kPeerLost, kDeadline, kMismatch, kAborted };

  /// Returns false when something had failed before.
  bool set(Kind kind, const std::string& message);

  bool raised() const { return raised_.load(std::memory_order_relaxed); }

  /// Throws PeerLost, DeadlineExceeded, InvalidArgument (a mismatch) or Aborted when raised.
  /// `during` is what the caller was doing, for the message.
  void check(const std::string& during) const;

  /// What failed; "" while nothing has.
  std::string message() const;

  /// Sets the failure, or finds an earlier one, and throws it.
  [[noreturn]] void fail(Kind kind, const std::string& message, const std::string& during);

 private:
  std::atomic<bool> raised_{false};
  mutable Mutex mutex_;
  Kind kind_ MUSTER_GUARDED_BY(mutex_) = Kind::kAborted;
  std::string message_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster
