#pragma once

// The log: one line an event, on standard error, with level, local time, task and place:
//
//   I 12:03:04.567 worker/1 ring.cc:88] entered the ring between worker/0 and worker/2
//
// Thread-safe. A line is written whole, in one write. The task is that of the thread (ScopedLogTask), else
// that of the process (set_log_task), so that several tasks can live in one process and still be told apart.

#include <functional>
#include <string>
#include <string_view>
#include <type_traits>

#include <fmt/format.h>

namespace muster::detail {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);

/// The task named by threads that have none of their own: "worker/1". Set once, at start. Empty: lines
/// name none, since whoever shows them does.
void set_log_task(std::string task);

/// Names the task of the calling thread while it lives.
class ScopedLogTask {
 public:
  explicit ScopedLogTask(std::string task);
  ~ScopedLogTask();
  ScopedLogTask(const ScopedLogTask&) = delete;
  ScopedLogTask& operator=(const ScopedLogTask&) = delete;

 private:
  std::string previous_;
};

/// The task that this thread was given; "" when only the process has one. For threads that work for another.
std::string log_task();

/// Where lines go instead of standard error; for tests and for the launcher's own output. An empty one
/// restores. It is called under the log's lock: it must not log.
using LogSink = std::function<void(std::string_view line)>;
void set_log_sink(LogSink sink);

/// Lines as they are, each with its newline, to where the log goes; in one write.
void write_lines(std::string_view lines);

void flush_log();

/// A format string that knows the line it stands on.
template <typename... Args>
struct LocatedFormat {
  template <typename Text>
  // NOLINTNEXTLINE(google-explicit-constructor): it stands in for the literal
  consteval LocatedFormat(const Text& text, const char* file_name = __builtin_FILE(),
                          int line_number = __builtin_LINE())
      : format(text), file(file_name), line(line_number) {}
  fmt::format_string<Args...> format;
  const char* file;
  int line;
};

void write_log(LogLevel level, const char* file, int line, std::string_view message);

template <typename... Args>
void log_at(LogLevel level, const LocatedFormat<std::type_identity_t<Args>...>& where, Args&&... args) {
  if (!log_enabled(level)) return;
  write_log(level, where.file, where.line, fmt::format(where.format, std::forward<Args>(args)...));
}

template <typename... Args>
void log_debug(LocatedFormat<std::type_identity_t<Args>...> where, Args&&... args) {
  log_at<Args...>(LogLevel::kDebug, where, std::forward<Args>(args)...);
}
template <typename... Args>
void log_info(LocatedFormat<std::type_identity_t<Args>...> where, Args&&... args) {
  log_at<Args...>(LogLevel::kInfo, where, std::forward<Args>(args)...);
}
template <typename... Args>
void log_warning(LocatedFormat<std::type_identity_t<Args>...> where, Args&&... args) {
  log_at<Args...>(LogLevel::kWarning, where, std::forward<Args>(args)...);
}
template <typename... Args>
void log_error(LocatedFormat<std::type_identity_t<Args>...> where, Args&&... args) {
  log_at<Args...>(LogLevel::kError, where, std::forward<Args>(args)...);
}

}  // namespace muster::detail
