#include "muster/task_output.h"

#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

constexpr size_t kRecentLines = 20;
// A task that never ends its line must not eat the launcher's memory.
constexpr size_t kLongestLine = 1 << 20;
constexpr const char* kClearLine = "\r\x1b[K";
constexpr const char* kRed = "\x1b[1;31m";
constexpr const char* kPlain = "\x1b[0m";
constexpr std::array<const char*, 6> kColours = {"\x1b[36m", "\x1b[33m", "\x1b[32m",
                                                 "\x1b[35m", "\x1b[34m", "\x1b[31m"};
constexpr std::string_view kLauncher = "muster";

void write_to_descriptor(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = ::write(fd, text.data(), text.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return;  // nobody reads us any more; the tasks go on
    text.remove_prefix(static_cast<size_t>(size));
  }
}

// The sequences that a live line ends with are for terminals; files and plain output do without.
std::string without_clear(std::string_view line) {
  std::string text(line);
  while (text.ends_with("\x1b[K")) text.resize(text.size() - 3);
  return text;
}

}  // namespace

TaskOutput::TaskOutput(Options options, const std::vector<std::string>& tasks)
    : options_(std::move(options)), tasks_(tasks.size()) {
  width_ = kLauncher.size();
  if (!options_.log_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options_.log_dir, error);
    if (error)
      raise<SystemError>("the log folder {} can't be made: {}", options_.log_dir.string(), error.message());
  }
  for (size_t i = 0; i < tasks.size(); ++i) {
    tasks_[i].name = tasks[i];
    width_ = std::max(width_, tasks[i].size());
    if (options_.log_dir.empty()) continue;
    std::string file = tasks[i];
    std::replace(file.begin(), file.end(), '/', '-');
    const auto path = options_.log_dir / (file + ".log");
    tasks_[i].log.reset(std::fopen(path.c_str(), "we"));
    if (!tasks_[i].log)
      raise<SystemError>("the log file {} can't be written: {}", path.string(), describe_errno(errno));
  }
}

TaskOutput::~TaskOutput() {
  const MutexLock lock(mutex_);
  if (!live_.empty()) emit(STDOUT_FILENO, "");
}

void TaskOutput::write(size_t number, int fd, std::string_view bytes) {
  const MutexLock lock(mutex_);
  Task& task = tasks_.at(number);
  std::string& partial = task.partial.at(static_cast<size_t>(fd - 1));
  while (!bytes.empty()) {
    const size_t end = bytes.find_first_of("\n\r");
    partial += bytes.substr(0, end);
    if (end == std::string_view::npos) {
      if (partial.size() > kLongestLine) {
        take_line(task, number, fd, partial);
        partial.clear();
      }
      return;
    }
    const bool live = bytes[end] == '\r' && (end + 1 == bytes.size() || bytes[end + 1] != '\n');
    if (live) {
      show_live(task, number, partial);
      partial.clear();
    } else if (bytes[end] == '\n') {
      take_line(task, number, fd, partial);
      partial.clear();
    }
    bytes.remove_prefix(end + 1);
  }
}

void TaskOutput::close(size_t number, int fd) {
  const MutexLock lock(mutex_);
  Task& task = tasks_.at(number);
  std::string& partial = task.partial.at(static_cast<size_t>(fd - 1));
  if (!partial.empty()) take_line(task, number, fd, partial);
  partial.clear();
  if (task.log) std::fflush(task.log.get());
}

void TaskOutput::say(std::string_view line) {
  const MutexLock lock(mutex_);
  emit(STDERR_FILENO, fmt::format("{}{}\n", prefix(std::string(kLauncher), 0, false), line));
}

void TaskOutput::warn(std::string_view line) {
  say(options_.err_is_terminal ? fmt::format("{}{}{}", kRed, line, kPlain) : std::string(line));
}

std::vector<std::string> TaskOutput::last_lines(size_t number) const {
  const MutexLock lock(mutex_);
  const auto& recent = tasks_.at(number).recent;
  return {recent.begin(), recent.end()};
}

void TaskOutput::take_line(Task& task, size_t number, int fd, std::string_view line) {
  task.recent.emplace_back(line);
  if (task.recent.size() > kRecentLines) task.recent.pop_front();
  if (task.log) {
    fmt::print(task.log.get(), "{}\n", line);
    std::fflush(task.log.get());  // somebody may be following it
  }
  const bool colour = fd == STDOUT_FILENO ? options_.out_is_terminal : options_.err_is_terminal;
  emit(fd, fmt::format("{}{}\n", prefix(task.name, number, colour), line));
}

void TaskOutput::show_live(const Task& task, size_t number, std::string_view line) {
  if (!options_.err_is_terminal) return;
  const std::string text = without_clear(line);
  live_ = text.empty() ? "" : prefix(task.name, number, true) + text;
  const std::string shown = kClearLine + live_;
  if (options_.write) return options_.write(STDERR_FILENO, shown);
  write_to_descriptor(STDERR_FILENO, shown);
}

// One write a line; the live line gives way and comes back below.
void TaskOutput::emit(int fd, const std::string& line) {
  const bool terminal = fd == STDOUT_FILENO ? options_.out_is_terminal : options_.err_is_terminal;
  const std::string text = !live_.empty() && terminal ? kClearLine + line + live_ : line;
  if (options_.write) return options_.write(fd, text);
  write_to_descriptor(fd, text);
}

std::string TaskOutput::prefix(const std::string& name, size_t number, bool colour) const {
  const char* begin = colour ? kColours.at(number % kColours.size()) : "";
  return fmt::format("{}{:<{}} |{} ", begin, name, width_, colour ? kPlain : "");
}

}  // namespace muster::detail
