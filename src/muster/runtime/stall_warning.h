#pragma once

// When a wait is long enough to be spoken of, which --stall-warning says.
//
//   StallWarning warning(stall_warning_of_job());
//   while (!is_ready()) {
//     changed.wait_for(lock, 50ms);
//     if (warning.is_due()) log_warning("a run waits for ...");
//   }
//
// A StallWarning is one wait's, and of one thread.

#include <chrono>

#include "muster/deadline.h"

namespace muster::detail {

/// --stall-warning as the launcher passed it on, or its default. Throws InvalidArgument for a variable of the
/// environment that can't be read.
std::chrono::milliseconds stall_warning_of_job();

class StallWarning {
 public:
  /// 0: never.
  explicit StallWarning(std::chrono::milliseconds after)
      : when_(after.count() > 0 ? Deadline::after(after) : Deadline::never()) {}

  /// True once, when the wait has lasted that long.
  bool is_due() {
    if (!when_.expired()) return false;
    when_ = Deadline::never();
    return true;
  }

  /// When it will be due; never again once it was.
  Deadline when() const { return when_; }

 private:
  Deadline when_;
};

}  // namespace muster::detail
