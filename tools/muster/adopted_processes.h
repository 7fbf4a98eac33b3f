#pragma once

// Processes that tasks have started and left behind, also those that went into the background as daemons do,
// with a session of their own: they become children of the launcher instead of init, which can then end them.
// A launcher that is killed leaves those to the system.
//
// Of the launcher's thread. Linux only: by PR_SET_CHILD_SUBREAPER and /proc.

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace muster::detail {

class AdoptedProcesses {
 public:
  /// From here on this process adopts. `is_ours` says which of its children it has started itself.
  explicit AdoptedProcesses(std::function<bool(pid_t)> is_ours);

  /// Takes note of those that have ended by themselves.
  void reap() const;

  struct Process {
    pid_t pid = 0;
    std::string name;  ///< of its program
    std::string task;  ///< whose it was, "worker/1"; empty when its environment does not say
  };

  /// Those that live.
  std::vector<Process> living() const;

 private:
  const std::function<bool(pid_t)> is_ours_;
};

}  // namespace muster::detail
