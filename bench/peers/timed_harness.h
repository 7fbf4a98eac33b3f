#pragma once

// What the programs have in common whose work is timed piece by piece: those of `muster bench ps` and `muster
// bench session`. A rank that is measured makes a TimedWork and calls serve_timed(), one that only serves
// others does so on threads of its own and calls serve_idle(); both answer the driver (conversation.h):
//
//   driver  run <warm-up> <samples> <batch>
//   rank    ok <microseconds of sample 1> <of sample 2> ...
//   driver  verify
//   rank    ok <1 if all results were right, else 0>
//
// A rank that is not measured says ok to everything. A sample is the mean of `batch` pieces of work; what
// comes before a piece, so that its data is fresh, is not timed.
//
// Needs nothing but the standard library. One thread.

#include <string>

namespace muster::detail::bench {

/// What one rank does. Any function may throw; the text reaches the user.
class TimedWork {
 public:
  virtual ~TimedWork() = default;

  /// Comes before each run(), and is not timed.
  virtual void prepare() {}

  /// A piece of work.
  virtual void run() = 0;

  /// Whether what all pieces of work gave so far is right.
  virtual bool verify() = 0;
};

/// Answers the driver until it says quit.
void serve_timed(TimedWork& work, const std::string& directory, int rank);
void serve_idle(const std::string& directory, int rank);

}  // namespace muster::detail::bench
