#pragma once

// Threads for work that may block: as many as there is work at a time, kept for what comes next.
//
// Thread-safe. stop() and the destructor wait until all work has ended: whatever it waits for must have been
// ended before.

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "muster/base/mutex.h"

namespace muster::detail {

class WorkThreads {
 public:
  WorkThreads() = default;
  ~WorkThreads() { stop(); }
  WorkThreads(const WorkThreads&) = delete;
  WorkThreads& operator=(const WorkThreads&) = delete;

  /// Runs the work soon, in a thread of its own. It must not throw. After stop() it is dropped.
  void run(std::function<void()> work);

  /// Waits for all work that has begun, and takes no more. Not from within work.
  void stop();

 private:
  void serve();

  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<std::function<void()>> waiting_ MUSTER_GUARDED_BY(mutex_);
  size_t idle_ MUSTER_GUARDED_BY(mutex_) = 0;
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::detail
