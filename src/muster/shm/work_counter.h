#pragma once

// Pieces of work that several threads, or the tasks of a host, share: whoever is free takes the next one, so
// that nobody waits while there is work.
//
//   while (const auto piece = counter.claim(end)) {    // pieces are numbers below `end`
//     ...
//     if (counter.finish(end)) wake_those_who_wait();  // that was the last
//   }
//   wait_until(doorbell, spin_policy, [&] { return counter.is_done(end); }, check);
//
// It may lie in shared memory; zeroed memory is a new one. Thread-safe; nothing blocks. Whoever sees that all
// is done sees what was done. Numbers grow: the next work goes on at the last end, unless all agree that
// nobody is at it any more and one of them calls reset().

#include <atomic>
#include <cstdint>
#include <optional>

namespace muster::detail {

class alignas(128) WorkCounter {
 public:
  /// The next piece, which is the caller's now; or nothing, when all are claimed or `is_ready(piece)` says
  /// that this one has to wait.
  template <typename IsReady>
  std::optional<uint64_t> claim(uint64_t end, const IsReady& is_ready) {
    uint64_t next = claimed();
    do {
      if (next >= end || !is_ready(next)) return std::nullopt;
    } while (!claimed_.compare_exchange_weak(next, next + 1));
    return next;
  }
  std::optional<uint64_t> claim(uint64_t end) {
    return claim(end, [](uint64_t /*piece*/) { return true; });
  }

  /// A piece is done. True for the one that was the last.
  bool finish(uint64_t end) { return done_.fetch_add(1) + 1 == end; }

  uint64_t claimed() const { return claimed_.load(std::memory_order_acquire); }
  bool is_claimed(uint64_t end) const { return claimed() >= end; }
  bool is_done(uint64_t end) const { return done_.load(std::memory_order_acquire) >= end; }

  void reset() {
    claimed_.store(0, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
  }

 private:
  std::atomic<uint64_t> claimed_{0};
  alignas(64) std::atomic<uint64_t> done_{0};
};

}  // namespace muster::detail
