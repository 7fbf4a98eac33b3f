#pragma once

// Two clocks that cost less than Deadline::Clock, which takes some 25 ns: a tenth of the smallest collective.
//
//   const TickClock clock;
//   const uint64_t began = TickClock::ticks();           // some 10 ns
//   ...
//   clock.time_of(began)                                 // when that was, for people
//
//   Deadline::at(coarse_now() + std::chrono::minutes(10))   // some 5 ns, and some milliseconds early
//
// Thread-safe; nothing blocks or throws.

#include <cstdint>

#include "muster/deadline.h"

namespace muster::detail {

/// The processor's time-stamp counter, and what its values mean. For records that people read: where the
/// counters of the cores do not agree, it is as wrong as they are.
class TickClock {
 public:
  TickClock();

  static uint64_t ticks() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return static_cast<uint64_t>(Deadline::Clock::now().time_since_epoch().count());
#endif
  }

  /// When the counter had this value, by what both clocks have shown since this was made.
  Deadline::Clock::time_point time_of(uint64_t ticks) const;

 private:
  const Deadline::Clock::time_point first_time_;
  const uint64_t first_ticks_;
};

/// The time as of the kernel's last tick: a few milliseconds ago at most.
Deadline::Clock::time_point coarse_now();

}  // namespace muster::detail
