#pragma once

// Where values from other tasks meet the step that takes them. A producer never blocks: a value may come
// before its step has begun here. An abort poisons the step: whoever takes from it then, or later, gets the
// reason, and what has come is let go of.
//
// Thread-safe.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "muster/base/mutex.h"
#include "muster/deadline.h"
#include "muster/runtime/step_status.h"

namespace muster::detail {

/// The values of one step. Thread-safe.
class StepValues {
 public:
  using Values = std::vector<std::pair<uint32_t, c10::IValue>>;

  /// Throws InvalidArgument for a key that came before.
  void put(uint32_t key, c10::IValue value);

  /// The first reason counts.
  void abort(const StepStatus& reason);

  /// Throws the reason when it was aborted. Cheap.
  void check() const {
    if (is_aborted_.load(std::memory_order_relaxed)) raise_aborted();
  }

  /// What has come since the last call; waits for something if so told. Throws the reason when it was
  /// aborted, DeadlineExceeded.
  Values take(bool may_wait, Deadline deadline = Deadline::never());

 private:
  [[noreturn]] void raise_aborted() const;

  mutable Mutex mutex_;
  ConditionVariable changed_;
  Values values_ MUSTER_GUARDED_BY(mutex_);
  std::unordered_set<uint32_t> keys_ MUSTER_GUARDED_BY(mutex_);
  StepStatus reason_ MUSTER_GUARDED_BY(mutex_);
  std::atomic<bool> is_aborted_{false};  // written with the mutex held
};

class Rendezvous {
 public:
  /// The values of a step, which begins with whoever asks first. Shared: a step may end while a value comes.
  std::shared_ptr<StepValues> step(uint64_t id);

  /// A value for a step; one that comes after its step has ended here is dropped.
  void put(uint64_t step, uint32_t key, c10::IValue value);

  /// Poisons the step, if it has not ended.
  void abort(uint64_t step, const StepStatus& reason);

  /// The step has ended here. Of one that failed, values may still come: they are dropped.
  void end(uint64_t step, bool has_failed);

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::shared_ptr<StepValues> values;  // null: it has ended, and is remembered for a while
    Clock::time_point since;
  };

  void forget_old() MUSTER_REQUIRES(mutex_);

  Mutex mutex_;
  std::unordered_map<uint64_t, Entry> steps_ MUSTER_GUARDED_BY(mutex_);
  Clock::time_point next_look_ MUSTER_GUARDED_BY(mutex_) = Clock::now();
};

}  // namespace muster::detail
