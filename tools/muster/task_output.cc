#include "muster/task_output.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/terminal.h"
#include "muster/base/text.h"

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

// Gives an errno, or 0.
int write_to_descriptor(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = ::write(fd, text.data(), text.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return errno;
    text.remove_prefix(static_cast<size_t>(size));
  }
  return 0;
}

// `word` is the name of the task, or of its job.
bool names_task(const std::string& word, const std::string& task) {
  return task == word || task.starts_with(word + "/");
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
    tasks_[i].is_shown =
        options_.only.empty() || std::ranges::any_of(options_.only, [&](const std::string& word) {
          return names_task(word, tasks[i]);
        });
    width_ = std::max(width_, tasks[i].size());
    if (options_.log_dir.empty()) continue;
    std::string file = tasks[i];
    std::replace(file.begin(), file.end(), '/', '-');
    tasks_[i].log = std::make_unique<LogFile>(options_.log_dir / (file + ".log"));
  }
  if (!options_.log_dir.empty()) launcher_log_ = std::make_unique<LogFile>(options_.log_dir / "launcher.log");
  if (!options_.tee.empty()) tee_ = std::make_unique<LogFile>(options_.tee);
}

TaskOutput::~TaskOutput() {
  const MutexLock lock(mutex_);
  for (const auto& task : tasks_) report_lost(task.log.get());
  report_lost(launcher_log_.get());
  report_lost(tee_.get());
  if (live_.empty()) return;
  live_.clear();
  emit(STDERR_FILENO, "\n");  // what follows, such as a prompt, starts on a line of its own
}

void TaskOutput::write(size_t number, int fd, std::string_view bytes) {
  const MutexLock lock(mutex_);
  Task& task = tasks_.at(number);
  Partial& partial = task.partial.at(static_cast<size_t>(fd - 1));
  while (!bytes.empty()) {
    if (partial.returned && bytes.front() != '\n' && bytes.front() != '\r') partial = {};
    const size_t end = bytes.find_first_of("\n\r");
    partial.text += bytes.substr(0, end);
    if (end == std::string_view::npos) {
      if (partial.text.size() > kLongestLine) {
        take_line(task, number, fd, partial.text);
        partial = {};
      }
      return;
    }
    if (bytes[end] == '\n') {
      take_line(task, number, fd, partial.text);
      if (partial.returned) show_live(task, number, "");
      partial = {};
    } else if (end + 1 == bytes.size() || bytes[end + 1] != '\n') {
      show_live(task, number, partial.text);
      partial.returned = true;
    }
    bytes.remove_prefix(end + 1);
  }
}

void TaskOutput::close(size_t number, int fd) {
  const MutexLock lock(mutex_);
  Task& task = tasks_.at(number);
  Partial& partial = task.partial.at(static_cast<size_t>(fd - 1));
  if (!partial.text.empty() && !partial.returned) take_line(task, number, fd, partial.text);
  partial = {};
}

void TaskOutput::say(std::string_view text) {
  say(text, /*red=*/false);
}

void TaskOutput::warn(std::string_view text) {
  say(text, options_.err_is_terminal);
}

void TaskOutput::say(std::string_view text, bool red) {
  const MutexLock lock(mutex_);
  for (const auto& line : split(text, '\n')) {
    const std::string time = time_text();
    const std::string before = prefix(std::string(kLauncher), 0, false);
    keep(launcher_log_.get(), time, line);
    keep(tee_.get(), time + before, line);
    emit(STDERR_FILENO, fmt::format("{}{}{}{}{}\n", time, before, red ? kRed : "", line, red ? kPlain : ""));
  }
}

std::vector<std::string> TaskOutput::last_lines(size_t number) const {
  const MutexLock lock(mutex_);
  const auto& recent = tasks_.at(number).recent;
  return {recent.begin(), recent.end()};
}

void TaskOutput::take_line(Task& task, size_t number, int fd, std::string_view line) {
  task.recent.emplace_back(line);
  if (task.recent.size() > kRecentLines) task.recent.pop_front();
  const std::string time = time_text();
  keep(task.log.get(), time, line);
  if (!task.is_shown) return;
  keep(tee_.get(), time + prefix(task.name, number, false), line);
  const bool colour = fd == STDOUT_FILENO ? options_.out_is_terminal : options_.err_is_terminal;
  emit(fd, fmt::format("{}{}{}\n", time, prefix(task.name, number, colour), line));
}

// The first line that a file can't take is said at once; how many there were, at the end.
void TaskOutput::keep(LogFile* file, const std::string& before, std::string_view line) {
  if (file == nullptr || file->append(before + std::string(line)) || file->lost() > 1) return;
  complain(fmt::format("{} can't be written: {}", file->path().string(), file->trouble()));
}

void TaskOutput::report_lost(const LogFile* file) {
  if (file == nullptr || file->lost() == 0) return;
  complain(fmt::format("{} is not complete: {} line{} could not be written: {}", file->path().string(),
                       file->lost(), file->lost() == 1 ? "" : "s", file->trouble()));
}

// Of files: on standard error only, since they may be on the same full disk.
void TaskOutput::complain(const std::string& what) {
  const bool red = options_.err_is_terminal;
  emit(STDERR_FILENO, fmt::format("{}{}{}{}\n", prefix(std::string(kLauncher), 0, false), red ? kRed : "",
                                  what, red ? kPlain : ""));
}

bool TaskOutput::reader_is_gone() const {
  const MutexLock lock(mutex_);
  return reader_is_gone_;
}

std::string TaskOutput::time_text() const {
  if (!options_.timestamps) return "";
  const auto now = std::chrono::system_clock::now();
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm local{};
  localtime_r(&seconds, &local);
  return fmt::format("{:02}:{:02}:{:02}.{:03} ", local.tm_hour, local.tm_min, local.tm_sec, since % 1000);
}

void TaskOutput::show_live(const Task& task, size_t number, std::string_view line) {
  if (!options_.err_is_terminal || !task.is_shown) return;
  const std::string text = without_clear(line);
  live_ = text.empty() ? "" : prefix(task.name, number, true) + text;
  write_out(STDERR_FILENO, kClearLine + fitting_live());
}

// One write a line; the live line gives way and comes back below.
void TaskOutput::emit(int fd, const std::string& line) {
  const bool terminal = fd == STDOUT_FILENO ? options_.out_is_terminal : options_.err_is_terminal;
  const std::string text = !live_.empty() && terminal ? kClearLine + line + fitting_live() : line;
  write_out(fd, text);
}

void TaskOutput::write_out(int fd, const std::string& text) {
  const int error = options_.write ? options_.write(fd, text) : write_to_descriptor(fd, text);
  if (error == EPIPE) reader_is_gone_ = true;
  if (error == 0 || error == EPIPE || output_is_lost_) return;
  output_is_lost_ = true;
  complain(fmt::format("standard {} can't be written: {}", fd == STDOUT_FILENO ? "output" : "error",
                       describe_errno(error)));
}

// The last column stays free, for the cursor. The terminal may have been resized since the last time.
std::string TaskOutput::fitting_live() const {
  const int columns = options_.columns ? options_.columns() : terminal_columns(STDERR_FILENO);
  return columns > 1 ? first_columns(live_, static_cast<size_t>(columns) - 1) : live_;
}

std::string TaskOutput::prefix(const std::string& name, size_t number, bool colour) const {
  const char* begin = colour ? kColours.at(number % kColours.size()) : "";
  return fmt::format("{}{:<{}} |{} ", begin, name, width_, colour ? kPlain : "");
}

}  // namespace muster::detail
