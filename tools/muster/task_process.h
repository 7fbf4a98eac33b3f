#pragma once

// One task as a process: in a group of its own, with pipes for its output, dying with the launcher.
//
// One thread uses it. It owns the pipes and the process, whose group it kills at its own end. Nothing blocks
// but the destructor, until a killed process has ended.

#include <sys/types.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/environment.h"

namespace muster::detail {

/// How a process ended.
struct Exit {
  int code = 0;    ///< when signal is 0
  int signal = 0;  ///< the one that ended it

  bool ok() const { return code == 0 && signal == 0; }
  int as_exit_code() const { return signal != 0 ? 128 + signal : code; }  ///< as a shell gives it
  std::string describe() const;  ///< "exited with code 3", "was killed by signal 9 (SIGKILL)"
};

class TaskProcess {
 public:
  /// Starts `program` with `arguments` (the first is its name). Throws SystemError when it can't be started.
  TaskProcess(const std::string& program, const std::vector<std::string>& arguments,
              const Environment& environment);

  /// Kills what is left of the group.
  ~TaskProcess();
  TaskProcess(const TaskProcess&) = delete;
  TaskProcess& operator=(const TaskProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool running() const { return !exit_.has_value(); }
  const std::optional<Exit>& exit() const { return exit_; }

  /// The reading ends of its standard output (0) and error (1); -1 when closed. Non-blocking.
  int pipe(int stream) const { return pipes_.at(static_cast<size_t>(stream)); }
  void close_pipe(int stream);

  /// To the whole group; a stopped process is woken, so that it can obey.
  void signal(int number) const;

  /// Takes the exit status if it has ended; then nothing of its group is left running.
  bool reap();

 private:
  pid_t pid_ = -1;
  std::array<int, 2> pipes_ = {-1, -1};
  std::optional<Exit> exit_;
};

}  // namespace muster::detail
