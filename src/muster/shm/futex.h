#pragma once

// How threads of different processes wait for each other through shared memory: spin, then yield, then sleep
// on a futex. Ranks may outnumber cores, and a core that spins is a core that nobody computes on.
//
// Each waiting side owns a Doorbell in shared memory: the word on which it sleeps. The side that changes
// something publishes it by a sequentially consistent exchange and then calls wake() on the doorbells of
// those who may wait for it: a load of a cache line that seldom changes, unless somebody sleeps. One thread
// waits at a doorbell, any may ring it. Waiting throws what its check throws, and nothing else.
//
//   waiter:    wait_until(doorbell, policy, [&] { return flag.load() >= 7; }, [&] { check_for_abort(); });
//   publisher: flag.exchange(7); wake(doorbell);

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace muster::detail {

struct alignas(64) Doorbell {
  std::atomic<uint32_t> sleeping{0};
};

/// Wakes whoever sleeps on `doorbell`. What they wait for must have been published by a sequentially
/// consistent operation.
void wake(Doorbell& doorbell);

/// Sleeps until wake() or for 50 ms; returns at once when nobody has set `sleeping` to 1.
void sleep_on(Doorbell& doorbell);

/// How long to spin and how often to yield before sleeping.
struct SpinPolicy {
  int spins = 0;
  int yields = 0;

  /// For `ranks` threads that wait for each other on `cores` cores.
  static SpinPolicy of(int ranks, int cores);
};

inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Returns when `ready()`. Calls `check()` now and then (at least every 50 ms); it may throw.
template <typename Ready, typename Check>
void wait_until(Doorbell& doorbell, SpinPolicy spin_policy, const Ready& ready, const Check& check) {
  for (int i = 0; i < spin_policy.spins; ++i) {
    if (ready()) return;
    spin_pause();
  }
  for (int i = 0; i < spin_policy.yields; ++i) {
    if (ready()) return;
    std::this_thread::yield();
  }
  check();
  while (!ready()) {
    doorbell.sleeping.exchange(1);
    if (ready()) return;  // whoever comes next wakes for nothing
    sleep_on(doorbell);
    check();
  }
}

}  // namespace muster::detail
