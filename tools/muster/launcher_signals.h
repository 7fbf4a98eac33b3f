#pragma once

// The signals that concern a launcher: INT, TERM and HUP, which end it, USR1 and USR2, which are for its
// tasks, TSTP, which stops it and its tasks until somebody continues it, and CHLD. They are blocked, in
// threads that are made later too, and read from a descriptor. Those that were ignored when the launcher was
// started, as HUP is under nohup, stay so, for its tasks too.
//
// Make it before any thread. One thread reads it; it owns the descriptor. Nothing blocks but next(), while
// the launcher is stopped.

#include <signal.h>

#include <array>
#include <functional>
#include <optional>
#include <string>

namespace muster::detail {

class LauncherSignals {
 public:
  /// Those that next() gives.
  static constexpr std::array<int, 6> kNumbers = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

  /// Ctrl-Z stops this process alone. `suspend` is called with true before it stops, and with false when it
  /// has been continued.
  explicit LauncherSignals(std::function<void(bool stops)> suspend = {});
  ~LauncherSignals();
  LauncherSignals(const LauncherSignals&) = delete;
  LauncherSignals& operator=(const LauncherSignals&) = delete;

  /// Readable when there is one; also when a child has ended.
  int descriptor() const { return descriptor_; }

  /// The next that has come; none of a child's end.
  std::optional<int> next() const;

  /// A launcher whose output nobody reads any more goes on.
  bool outlives_readers() const { return outlives_readers_; }

  /// Whether a signal is passed on to the tasks: Slurm sends USR1, for example, when the time of a job is
  /// nearly over (--signal), and QUIT asks programs on Muster for their stacks.
  static bool is_for_tasks(int number);

 private:
  const std::function<void(bool stops)> suspend_;
  int descriptor_ = -1;
  bool outlives_readers_ = false;
};

/// "SIGTERM".
std::string signal_name(int number);

}  // namespace muster::detail
