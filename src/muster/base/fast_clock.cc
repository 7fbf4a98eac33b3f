#include "muster/base/fast_clock.h"

#include <time.h>

#include <chrono>

namespace muster::detail {

TickClock::TickClock() : first_time_(Deadline::Clock::now()), first_ticks_(ticks()) {}

Deadline::Clock::time_point TickClock::time_of(uint64_t ticks) const {
  using Duration = std::chrono::duration<double, Deadline::Clock::period>;
  const auto now = Deadline::Clock::now();
  const auto passed = static_cast<double>(TickClock::ticks() - first_ticks_);
  if (passed <= 0) return now;
  const double since_first = static_cast<double>(static_cast<int64_t>(ticks - first_ticks_)) / passed;
  return first_time_ +
         std::chrono::duration_cast<Deadline::Clock::duration>(Duration(now - first_time_) * since_first);
}

Deadline::Clock::time_point coarse_now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return Deadline::Clock::time_point(std::chrono::seconds(time.tv_sec) +
                                     std::chrono::nanoseconds(time.tv_nsec));
}

}  // namespace muster::detail
