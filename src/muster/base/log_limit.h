#pragma once

// Keeps what a stranger can cause from filling the log: so many lines in an interval, then none until the
// next, which begins with how many were left out.
//
//   LogLimit refusals;                                      // a member of whoever refuses
//   if (refusals.allows(Deadline::Clock::now()))
//     log_warning("refused {}: {}{}", peer, reason, refusals.left_out());
//
// Not thread-safe; nothing blocks or throws.

#include <chrono>
#include <string>

#include "muster/deadline.h"

namespace muster::detail {

class LogLimit {
 public:
  using Time = Deadline::Clock::time_point;

  explicit LogLimit(int lines = 10, std::chrono::milliseconds interval = std::chrono::seconds(10))
      : lines_(lines), interval_(interval) {}

  /// Whether a line may be written now.
  bool allows(Time now);

  /// What to append to the line that is written next: " (57 more like it were not logged)", or "" when there
  /// are none.
  std::string left_out();

 private:
  const int lines_;
  const std::chrono::milliseconds interval_;
  Time begin_;
  int written_ = 0;
  long left_out_ = 0;
};

}  // namespace muster::detail
