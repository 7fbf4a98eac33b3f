#pragma once

// One task as a process: in a group of its own, with pipes for its output, dying with the launcher. A
// launcher on another host is one, too, to the one that starts it.
//
// One thread uses it. It owns the pipes and the process, whose group it kills at its own end. Nothing blocks
// but the destructor, until a killed process has ended.

#include <sys/types.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
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
  struct Options {
    std::string program;
    std::vector<std::string> arguments;  ///< the first is its name
    Environment environment;
    std::vector<int> cores;  ///< that it may run on; empty: as the launcher
    /// write_input() reaches its standard input, which else is /dev/null; and it has no terminal.
    bool has_input = false;
  };

  /// Throws SystemError when it can't be started.
  explicit TaskProcess(const Options& options);

  /// Kills what is left of the group.
  ~TaskProcess();
  TaskProcess(const TaskProcess&) = delete;
  TaskProcess& operator=(const TaskProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool running() const { return !exit_.has_value(); }
  const std::optional<Exit>& exit() const { return exit_; }

  /// The reading ends of its standard output (0) and error (1); -1 when closed. Non-blocking.
  int pipe(int stream) const { return pipes_.at(static_cast<size_t>(stream)); }

  /// Gives `take` what it wrote there since, in pieces, but not for ever: whoever never stops writing is
  /// read on the next time. False when the stream has ended, and closes it then.
  bool read_pipe(int stream, const std::function<void(std::string_view bytes)>& take);

  /// To its standard input, for a few lines, which a pipe holds. False when they did not fit. Nothing
  /// becomes of them when nobody reads it any more: then the process has ended, or will.
  bool write_input(std::string_view text) const;
  void close_input();

  /// To the whole group; a stopped process is woken, so that it can obey.
  void signal(int number) const;

  /// To those of the group that have a handler for it, so that a shell around a program is not ended by what
  /// the program knows how to take; to the whole group when none has.
  void signal_handlers(int number) const;

  /// Takes the exit status if it has ended; then nothing of its group is left running.
  bool reap();

 private:
  void close_pipe(int stream);

  pid_t pid_ = -1;
  std::array<int, 2> pipes_ = {-1, -1};
  int input_ = -1;
  std::optional<Exit> exit_;
};

}  // namespace muster::detail
