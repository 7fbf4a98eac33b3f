#pragma once

// A queue of tensors on a task (muster/queue.h): bounded, first in, first out.
//
// Thread-safe. put() and take() block; they call `check` about every 50 ms, which throws to end the wait.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/base/mutex.h"

namespace muster::detail {

class TensorQueue {
 public:
  using Element = std::vector<at::Tensor>;

  /// After `stall_warning` a wait says what for; 0: never.
  TensorQueue(std::string name, int64_t capacity, std::vector<int64_t> types,
              std::chrono::milliseconds stall_warning)
      : name_(std::move(name)),
        capacity_(capacity),
        types_(std::move(types)),
        stall_warning_(stall_warning) {}

  /// Throws InvalidArgument where a node describes the queue otherwise.
  void check_options(int64_t capacity, const std::vector<int64_t>& types) const;

  /// Keeps copies. Throws Aborted when the queue is closed, InvalidArgument for tensors of other types.
  void put(const Element& element, const std::function<void()>& check);

  /// Throws Aborted when the queue is closed and empty.
  Element take(const std::function<void()>& check);

  int64_t size() const;
  void close();

 private:
  void wait(MutexLock& lock, const char* for_what, const std::function<bool()>& is_ready,
            const std::function<void()>& check) MUSTER_REQUIRES(mutex_);

  const std::string name_;
  const int64_t capacity_;
  const std::vector<int64_t> types_;
  const std::chrono::milliseconds stall_warning_;
  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::deque<Element> elements_ MUSTER_GUARDED_BY(mutex_);
  bool is_closed_ MUSTER_GUARDED_BY(mutex_) = false;
};

}  // namespace muster::detail
