#pragma once

// What the launcher shows of its tasks: each line with the name of its task in front, coloured on a terminal;
// one live line (a task's progress, which ends in a carriage return) kept at the bottom; each task's own log
// file on demand; and the last lines of each, for when it fails.
//
// Thread-safe. Lines are written whole.

#include <array>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/mutex.h"

namespace muster::detail {

class TaskOutput {
 public:
  struct Options {
    bool out_is_terminal = false;  ///< standard output: colours and a live line
    bool err_is_terminal = false;
    std::filesystem::path log_dir;  ///< empty: no files
    /// For tests: where text goes instead of the descriptors 1 and 2.
    std::function<void(int fd, std::string_view text)> write;
  };

  /// Makes the log folder. Throws SystemError when it can't.
  TaskOutput(Options options, const std::vector<std::string>& tasks);
  ~TaskOutput();

  /// Bytes that task number `task` wrote to its standard output (fd 1) or error (fd 2), in pieces as they
  /// come.
  void write(size_t task, int fd, std::string_view bytes);

  /// The task has closed that stream: what it left without a newline is a line too.
  void close(size_t task, int fd);

  /// A line of the launcher itself, on standard error.
  void say(std::string_view line);

  /// The same for what went wrong; red on a terminal.
  void warn(std::string_view line);

  /// The last lines of a task, newest last.
  std::vector<std::string> last_lines(size_t task) const;

 private:
  struct Task {
    std::string name;
    std::array<std::string, 2> partial;  // of fd 1 and 2
    std::deque<std::string> recent;
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> log{nullptr, std::fclose};
  };

  void take_line(Task& task, size_t number, int fd, std::string_view line) MUSTER_REQUIRES(mutex_);
  void show_live(const Task& task, size_t number, std::string_view line) MUSTER_REQUIRES(mutex_);
  void emit(int fd, const std::string& line) MUSTER_REQUIRES(mutex_);
  std::string prefix(const std::string& name, size_t number, bool colour) const;

  const Options options_;
  size_t width_ = 0;  // of the names; constant after construction
  mutable Mutex mutex_;
  std::vector<Task> tasks_ MUSTER_GUARDED_BY(mutex_);
  // Shown at the bottom of the terminal; empty when there is none.
  std::string live_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::detail
