#pragma once

// Threads that share out the pieces of one piece of work: whoever is free takes the next.
//
//   Team team(2);
//   team.run(chunks, [&](size_t chunk) { ... });   // returns when all are done; the caller works too
//
// It owns its threads, which sleep while there is nothing to do. Of one thread: calls of run() must not
// overlap.

#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "muster/net/signal.h"

namespace muster {

class Team {
 public:
  /// `threads`: with the one that calls run().
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  /// `work` must not throw. A single piece is the caller's, and wakes nobody.
  void run(size_t count, const std::function<void(size_t)>& work);

 private:
  void help(size_t helper);
  void take(bool yields);

  const std::function<void(size_t)>* work_ = nullptr;
  size_t count_ = 0;
  std::atomic<size_t> next_{0};
  std::atomic<uint64_t> round_{0};  // odd while there is work: who comes too late for it finds it even
  std::atomic<size_t> busy_{0};     // helpers that may be at it
  std::atomic<bool> stopping_{false};
  Bell done_;
  std::vector<Bell> bells_;  // of the helpers
  std::vector<std::thread> helpers_;
};

}  // namespace muster
