#pragma once

// Threads that work on the items of one run together: whoever is free takes the next item.
//
//   ThreadPool pool(2);
//   pool.run(count, [&](size_t item) { ... });   // returns when all are done; the caller works too
//
// It owns its threads, which sleep while there is nothing to do. One thread uses it: calls of
// run() must not overlap.

#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "muster/shm/futex.h"
#include "muster/shm/work_counter.h"

namespace muster::detail {

class ThreadPool {
 public:
  /// `threads`: with the one that calls run().
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Calls `work` for each of `count` items. It must not throw. A single item is the caller's, and wakes
  /// nobody.
  void run(size_t count, const std::function<void(size_t)>& work);

 private:
  void wait_for_work(size_t thread);
  void take(bool yields);

  const std::function<void(size_t)>* work_ = nullptr;
  size_t count_ = 0;
  WorkCounter counter_;
  std::atomic<uint64_t> round_{0};  // odd while there is work: who comes too late for it finds it even
  std::atomic<size_t> busy_{0};     // threads that may be at it
  std::atomic<bool> stopping_{false};
  Doorbell done_;
  std::vector<Doorbell> doorbells_;  // of the threads
  std::vector<std::thread> threads_;
};

}  // namespace muster::detail
