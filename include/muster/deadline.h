#pragma once

// A point on the monotonic clock by which something must have happened. Every wait inside Muster has one,
// which may be never(): then only what is waited for ends the wait, or the end of the job.
//
//   const auto deadline = muster::Deadline::after(std::chrono::seconds(5));
//   condition.wait_until(lock, deadline.time_point());
//   if (deadline.expired()) throw muster::DeadlineExceeded("nobody came");

#include <chrono>
#include <string>

namespace muster {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after(Clock::duration duration);
  static Deadline at(Clock::time_point when) { return Deadline(when); }
  static Deadline never() { return Deadline(Clock::time_point::max()); }

  bool is_never() const { return when_ == Clock::time_point::max(); }
  bool expired() const { return !is_never() && Clock::now() >= when_; }

  /// Time left; zero when expired, Clock::duration::max() when never.
  Clock::duration remaining() const;

  /// For condition variables. A wait until `never` is cut to a day, so that no clock arithmetic overflows:
  /// wait in a loop with a predicate.
  Clock::time_point time_point() const;

  Deadline earlier(Deadline other) const { return other.when_ < when_ ? other : *this; }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}
  Clock::time_point when_;
};

/// Seconds with one decimal, for messages: "12.4 s".
std::string format_seconds(Deadline::Clock::duration duration);

}  // namespace muster
