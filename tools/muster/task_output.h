#pragma once

// What the launcher shows of its tasks: each line with the name of its task in front, coloured on a terminal;
// one live line (a task's progress, which ends in a carriage return) kept at the bottom, cut at the width of
// the terminal; on demand a log file of each task and of the launcher, or one of all that is shown; and the
// last lines of each task, for when it fails. What can't be written is said.
//
// Thread-safe. Lines are written whole.

#include <array>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/log_file.h"

namespace muster::detail {

class TaskOutput {
 public:
  struct Options {
    bool out_is_terminal = false;  ///< standard output: colours and a live line
    bool err_is_terminal = false;
    std::filesystem::path log_dir;  ///< the folder of this run, with a file for each task; empty: none
    std::filesystem::path tee;      ///< a file for all that is shown, as it is shown; empty: none
    std::vector<std::string> only;  ///< the tasks whose output is shown, "worker/0" or "ps"; empty: all
    bool timestamps = false;        ///< the local time in front of each line, in files too
    /// For tests: where text goes instead of the descriptors 1 and 2, and the width of the terminal.
    std::function<int(int fd, std::string_view text)> write;  ///< gives an errno, or 0
    std::function<int()> columns;
  };

  /// Makes the log folder. Throws SystemError when it can't.
  TaskOutput(Options options, const std::vector<std::string>& tasks);
  ~TaskOutput();

  /// Bytes that task number `task` wrote to its standard output (fd 1) or error (fd 2), in pieces as they
  /// come.
  void write(size_t task, int fd, std::string_view bytes);

  /// The task has closed that stream: what it left without a newline is a line too.
  void close(size_t task, int fd);

  /// What the launcher itself says, in one line or several, on standard error.
  void say(std::string_view text);

  /// The same for what went wrong; red on a terminal.
  void warn(std::string_view text);

  /// Whether standard output or error was a pipe that nobody reads any more.
  bool reader_is_gone() const;

  /// The last lines of a task, newest last.
  std::vector<std::string> last_lines(size_t task) const;

 private:
  // What came of a line whose end has not.
  struct Partial {
    std::string text;
    bool returned = false;  // a carriage return came last: it is a live line, unless a newline follows
  };
  struct Task {
    std::string name;
    std::array<Partial, 2> partial;  // of fd 1 and 2
    std::deque<std::string> recent;
    std::unique_ptr<LogFile> log;  // empty: none
    bool is_shown = true;
  };

  void say(std::string_view text, bool red);
  void take_line(Task& task, size_t number, int fd, std::string_view line) MUSTER_REQUIRES(mutex_);
  void show_live(const Task& task, size_t number, std::string_view line) MUSTER_REQUIRES(mutex_);
  void keep(LogFile* file, const std::string& before, std::string_view line) MUSTER_REQUIRES(mutex_);
  void report_lost(const LogFile* file) MUSTER_REQUIRES(mutex_);
  void complain(const std::string& what) MUSTER_REQUIRES(mutex_);
  void emit(int fd, const std::string& line) MUSTER_REQUIRES(mutex_);
  void write_out(int fd, const std::string& text) MUSTER_REQUIRES(mutex_);
  std::string time_text() const;
  std::string fitting_live() const MUSTER_REQUIRES(mutex_);
  std::string prefix(const std::string& name, size_t number, bool colour) const;

  const Options options_;
  size_t width_ = 0;  // of the names; constant after construction
  mutable Mutex mutex_;
  std::vector<Task> tasks_ MUSTER_GUARDED_BY(mutex_);
  // Shown at the bottom of the terminal, as far as it fits; empty when there is none.
  std::string live_ MUSTER_GUARDED_BY(mutex_);
  std::unique_ptr<LogFile> launcher_log_ MUSTER_GUARDED_BY(mutex_);
  std::unique_ptr<LogFile> tee_ MUSTER_GUARDED_BY(mutex_);
  bool reader_is_gone_ MUSTER_GUARDED_BY(mutex_) = false;
  bool output_is_lost_ MUSTER_GUARDED_BY(mutex_) = false;  // and this has been said
};

}  // namespace muster::detail
