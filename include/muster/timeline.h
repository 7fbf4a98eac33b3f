#pragma once

// What the tasks of a cluster did in one run of a session (session.h), and when.
//
//   muster::Timeline timeline;
//   session.run({loss}, {{x, images}}, {train}, &timeline);
//   timeline.save("run.json");  // for chrome://tracing and ui.perfetto.dev
//
// A run that is noted takes a little longer than others. A value; one thread at a time uses it.

#include <chrono>
#include <string>
#include <vector>

namespace muster {

/// A node that ran on a task, or a time in which the task waited for values of others.
struct TimelineSpan {
  std::string task;  ///< "/job:worker/task:1"
  std::string node;  ///< "encoder/relu"; one pass of autograd for many nodes has the name of one of them
  std::string op;    ///< "aten::relu"; "wait" where the task waited, and there is no node
  /// Since the first span of the run. Those of several hosts are by the clocks of these.
  std::chrono::nanoseconds start{0};
  std::chrono::nanoseconds duration{0};
};

struct Timeline {
  std::vector<TimelineSpan> spans;  ///< In the order in which they began.

  /// Writes a trace in Chrome's format, a process for each task. A file that is there is replaced. Throws
  /// SystemError where it can't be written.
  void save(const std::string& file) const;
};

}  // namespace muster
