#pragma once

// `muster run --hosts h1,h2`: starts a launcher on each host by ssh, shows what all of them say, passes
// signals on, and ends them together. The first host is node 0, at which the others find each other; from
// then on they know by themselves when the job ends. This one only carries: the job's secret and the
// variables of the tasks go to the launchers' standard inputs (launcher_input.h), and a launcher whose input
// ends stops its tasks; so nothing stays behind when this one dies, or a connection breaks.
//
// One thread makes it, before any other, and calls run(), which blocks to the end of the job in one poll
// loop.

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/environment.h"
#include "muster/deadline.h"
#include "muster/host_list.h"
#include "muster/launcher_signals.h"
#include "muster/task_output.h"
#include "muster/task_process.h"

namespace muster::detail {

/// ssh's own exit code, when it could not connect or its connection broke: no launcher that it starts ends
/// so.
constexpr int kSshFailed = 255;

class HostLauncher {
 public:
  struct Options {
    std::vector<HostEntry> hosts;
    std::vector<std::string>
        ssh;  ///< the command by which a host is reached; its name and what to run follow
    std::vector<std::string> flags;    ///< of `muster run`, the same on all hosts
    std::vector<std::string> command;  ///< the program and its arguments
    Environment environment;           ///< of this process
    Environment variables;             ///< for the launchers and their tasks
    std::filesystem::path tee;
    std::chrono::milliseconds grace{std::chrono::seconds(5)};
    std::chrono::milliseconds join_timeout{std::chrono::minutes(5)};  ///< for the launchers to begin
  };

  /// Throws InvalidArgument when the others could not reach the first host by its name.
  explicit HostLauncher(Options options);
  ~HostLauncher();

  /// The exit code for `muster run`: 0, or that of the launcher that saw the failure.
  int run();

  /// The command that starts the launcher of each host, as a shell would take it, for --dry-run.
  std::vector<std::string> commands() const;

 private:
  struct Node {
    std::string host;
    std::unique_ptr<TaskProcess> process;
    bool has_begun = false;  // its launcher, which has said so
    std::string unread;      // until then: the beginning of a line of standard output
  };

  std::vector<std::string> arguments_of(size_t node) const;
  void start(size_t node);
  void poll_once();
  void read_signals();
  void read_output(size_t node, int stream);
  void show(size_t node, int stream, std::string_view bytes);
  void check_beginnings();
  void reap();
  void stop_all();
  bool any_running() const;

  const Options options_;
  const std::string muster_;  // this program's own path, which is the same on all hosts
  const LauncherSignals signals_;
  std::unique_ptr<TaskOutput> output_;
  std::vector<Node> nodes_;
  std::optional<int> interrupted_by_;
  int exit_code_ = 0;
  bool stopped_ = false;
  std::optional<Deadline> begin_until_;  // while some launcher has not begun
  Deadline next_reminder_ = Deadline::never();
  std::optional<Deadline> stop_at_;  // when one has failed and the others should end by themselves
  std::optional<Deadline> kill_at_;
};

}  // namespace muster::detail
