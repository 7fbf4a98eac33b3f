#include "muster/base/log.h"

#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include "muster/base/mutex.h"

namespace muster::detail {
namespace {

thread_local std::string thread_task;

// Standard error belongs to the process, and so does what writes to it: the one piece of shared state in
// base.
struct ProcessLog {
  Mutex mutex;
  std::string task MUSTER_GUARDED_BY(mutex) = "-";
  LogSink sink MUSTER_GUARDED_BY(mutex);
  std::atomic<LogLevel> level{LogLevel::kInfo};
};

ProcessLog& process_log() {
  static auto* log = new ProcessLog;  // never destroyed: threads may log while the process exits
  return *log;
}

class TaskFlag : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg&, const std::tm&, spdlog::memory_buf_t& out) override {
    if (!thread_task.empty()) return append(thread_task, out);
    auto& log = process_log();
    const MutexLock lock(log.mutex);
    append(log.task, out);
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<TaskFlag>(); }

 private:
  static void append(const std::string& task, spdlog::memory_buf_t& out) {
    if (task.empty()) return;
    out.append(task);
    out.push_back(' ');
  }
};

class LineSink : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    write_lines({line.data(), line.size()});
  }
  void flush_() override {}
};

spdlog::logger& logger() {
  static auto* instance = [] {
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<TaskFlag>('*').set_pattern("%L %H:%M:%S.%e %*%s:%#] %v");
    auto* made = new spdlog::logger("muster", std::make_shared<LineSink>());
    made->set_formatter(std::move(formatter));
    made->set_level(spdlog::level::trace);
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

}  // namespace

void set_log_level(LogLevel level) {
  process_log().level = level;
}

bool log_enabled(LogLevel level) {
  return level >= process_log().level.load(std::memory_order_relaxed);
}

void set_log_task(std::string task) {
  auto& log = process_log();
  const MutexLock lock(log.mutex);
  log.task = std::move(task);
}

ScopedLogTask::ScopedLogTask(std::string task) : previous_(std::move(thread_task)) {
  thread_task = std::move(task);
}

ScopedLogTask::~ScopedLogTask() {
  thread_task = std::move(previous_);
}

std::string log_task() {
  return thread_task;
}

void set_log_sink(LogSink sink) {
  auto& log = process_log();
  const MutexLock lock(log.mutex);
  log.sink = std::move(sink);
}

// One write: lines of several processes that share a pipe do not mix.
void write_lines(std::string_view lines) {
  {
    auto& log = process_log();
    const MutexLock lock(log.mutex);
    if (log.sink) return log.sink(lines);
  }
  while (!lines.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, lines.data(), lines.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    lines.remove_prefix(static_cast<size_t>(written));
  }
}

void flush_log() {
  logger().flush();
}

void write_log(LogLevel level, const char* file, int line, std::string_view message) {
  logger().log(spdlog::source_loc{file, line, ""}, spdlog_level(level),
               spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace muster::detail
