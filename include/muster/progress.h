#pragma once

// The progress of a long piece of work, on standard error: a line that rewrites itself on a terminal, and a
// plain line each few seconds elsewhere.
//
//   muster::Progress progress(job.progress_style(), steps);
//   for (int64_t step = 1; step <= steps; ++step) progress.update(step, "loss 0.0812  3214 samples/s");
//   progress.finish();
//
// looks like
//
// [=========>          ]  47%  0:21 left  loss 0.0812  3214 samples/s
//
// and is cut at the width of the terminal. A Trainer shows its own (Trainer::show_progress); this is for
// other work. A live line ends in a carriage return, without a newline: `muster run` keeps such a line at the
// bottom of its own output. Not thread-safe: one thread reports.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace muster {

/// kAuto: live on a terminal, plain elsewhere.
enum class ProgressStyle { kAuto, kLive, kPlain, kOff };

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// Writes to standard error. A total of 0: nobody knows how much there is, and no bar is shown.
  Progress(ProgressStyle style, int64_t total);

  /// For tests: where to write, what time it is, and how wide the terminal is (0: nobody knows).
  Progress(ProgressStyle style, int64_t total, std::function<void(std::string_view)> write,
           std::function<Clock::time_point()> now, std::function<int()> columns);

  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` of `total` is done. Cheap when nothing is due to be printed; the function is called only when
  /// something is.
  void update(int64_t done, const std::string& text);
  void update(int64_t done, const std::function<std::string()>& text);

  /// Clears the live line, so that what follows starts on a clean one.
  void finish();

 private:
  std::string render(int64_t done, const std::string& text, Clock::time_point now) const;

  const bool live_;
  const bool off_;
  const int64_t total_;
  const std::function<void(std::string_view)> write_;
  const std::function<Clock::time_point()> now_;
  const std::function<int()> columns_;
  const Clock::time_point start_;
  Clock::time_point next_;
  bool line_is_shown_ = false;
};

}  // namespace muster
