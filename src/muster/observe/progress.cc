#include "muster/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "muster/base/terminal.h"
#include "muster/base/text.h"

namespace muster {
namespace {

constexpr auto kLiveInterval = std::chrono::milliseconds(100);
constexpr auto kPlainInterval = std::chrono::seconds(5);
constexpr int kBarWidth = 20;

void write_to_standard_error(std::string_view text) {
  (void)!::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

Progress::Progress(ProgressStyle style, int64_t total)
    : Progress(style, total, write_to_standard_error, Clock::now,
               [] { return detail::terminal_columns(STDERR_FILENO); }) {}

Progress::Progress(ProgressStyle style, int64_t total, std::function<void(std::string_view)> write,
                   std::function<Clock::time_point()> now, std::function<int()> columns)
    : live_(style == ProgressStyle::kLive || (style == ProgressStyle::kAuto && isatty(STDERR_FILENO) == 1)),
      off_(style == ProgressStyle::kOff),
      total_(total),
      write_(std::move(write)),
      now_(std::move(now)),
      columns_(std::move(columns)),
      start_(now_()),
      next_(live_ ? start_ : start_ + kPlainInterval) {}

Progress::~Progress() {
  finish();
}

void Progress::update(int64_t done, const std::string& text) {
  update(done, [&] { return text; });
}

void Progress::update(int64_t done, const std::function<std::string()>& text) {
  if (off_) return;
  const auto now = now_();
  if (now < next_) return;
  next_ = now + (live_ ? Clock::duration(kLiveInterval) : Clock::duration(kPlainInterval));
  std::string line = render(done, text(), now);
  // The terminal may have been resized since the last time. Its last column stays free, for the cursor.
  const int columns = live_ ? columns_() : 0;
  if (columns > 1) line = detail::first_columns(line, static_cast<size_t>(columns) - 1);
  // One write: neither our own log nor another task's can come between.
  write_(line + (live_ ? "\x1b[K\r" : "\n"));
  line_is_shown_ = live_;
}

void Progress::finish() {
  if (line_is_shown_) write_("\x1b[K\r");
  line_is_shown_ = false;
}

std::string Progress::render(int64_t done, const std::string& text, Clock::time_point now) const {
  if (total_ <= 0) return text;
  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0.0, 1.0);
  const int filled = static_cast<int>(share * kBarWidth);
  std::string bar(static_cast<size_t>(filled), '=');
  if (filled < kBarWidth) bar += '>';
  std::string left;
  if (share > 0) {
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    const auto seconds = std::llround(elapsed / share - elapsed);
    left = fmt::format("{}:{:02} left  ", seconds / 60, seconds % 60);
  }
  return fmt::format("[{:<{}}] {:3.0f}%  {}{}", bar, kBarWidth, share * 100, left, text);
}

}  // namespace muster
