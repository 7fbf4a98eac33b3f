#pragma once

// A small process that outlives the launcher by a moment: when the launcher dies in whatever way (SIGKILL
// too), the pipe between them closes, and the reaper ends every process group that it still watches:
// tasks and whatever they have started.
//
// Make it before any thread: it is a fork without exec.

#include <sys/types.h>

namespace muster::detail {

class OrphanReaper {
 public:
  OrphanReaper();
  /// Closes the pipe; a reaper that watches nothing just ends.
  ~OrphanReaper();
  OrphanReaper(const OrphanReaper&) = delete;
  OrphanReaper& operator=(const OrphanReaper&) = delete;

  void watch(pid_t group);
  void forget(pid_t group);
  pid_t pid() const { return pid_; }

 private:
  void write(char what, pid_t group) const;

  int pipe_ = -1;
  pid_t pid_ = -1;
};

}  // namespace muster::detail
