#pragma once

// A small process that outlives the launcher by a moment: when the launcher dies in whatever way (SIGKILL
// too), the pipe between them closes, and the warden ends every process group that is still in its book:
// tasks and whatever they have started.
//
// Make it before any thread: it is a fork without exec.

#include <sys/types.h>

namespace muster {

class Warden {
 public:
  Warden();
  /// Closes the pipe; a warden with an empty book just goes.
  ~Warden();
  Warden(const Warden&) = delete;
  Warden& operator=(const Warden&) = delete;

  void watch(pid_t group);
  void forget(pid_t group);

 private:
  void write(char what, pid_t group) const;

  int pipe_ = -1;
  pid_t pid_ = -1;
};

}  // namespace muster
