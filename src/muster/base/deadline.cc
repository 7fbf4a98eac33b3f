#include "muster/deadline.h"

#include <algorithm>

#include <fmt/format.h>

namespace muster {

Deadline Deadline::after(Clock::duration duration) {
  const auto now = Clock::now();
  if (duration >= Clock::time_point::max() - now) return never();
  return Deadline(now + duration);
}

Deadline::Clock::duration Deadline::remaining() const {
  if (is_never()) return Clock::duration::max();
  return std::max(when_ - Clock::now(), Clock::duration::zero());
}

Deadline::Clock::time_point Deadline::time_point() const {
  return std::min(when_, Clock::now() + std::chrono::hours(24));
}

std::string format_seconds(Deadline::Clock::duration duration) {
  return fmt::format("{:.1f} s", std::chrono::duration<double>(duration).count());
}

}  // namespace muster
