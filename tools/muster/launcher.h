#pragma once

// The course of `muster run` on one node: find the other nodes, start this node's tasks, watch them, and end
// everything together.
//
//   starting   the coordinator (on node 0), the launchers of all nodes, then the tasks, one after the other
//              unless the user interrupts
//   running    output is shown. With parameter servers a task that fails is restarted while it may be, and
//              the job goes on without a worker that fails for good, unless it was the last
//   finishing  all workers of the job are done: servers get a grace period to end by themselves
//   stopping   a task failed, the job was aborted elsewhere, or the user wants it: TERM, then KILL after the
//              grace period. Without parameter servers all begin again then, while they may be restarted
//
// What the tasks have left behind when they have ended, daemons too, is ended then, and said.
//
// Not thread-safe: one thread makes it and calls run(), which starts, watches and ends the tasks in one
// poll loop. Other threads bring it news: one finds the other nodes at the start, while the user may still
// interrupt; one waits for them at the end; and the member's own says that the job was aborted, or which
// task has failed. They leave it in `shared_` and wake the loop. launcher_signals.h says what becomes of
// signals.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "muster/adopted_processes.h"
#include "muster/base/mutex.h"
#include "muster/launch_options.h"
#include "muster/launcher_signals.h"
#include "muster/node_rendezvous.h"
#include "muster/orphan_reaper.h"
#include "muster/task_output.h"
#include "muster/task_process.h"

namespace muster::detail {

class Launcher {
 public:
  /// Make it before any thread. Throws InvalidArgument for options that can't work.
  explicit Launcher(LaunchOptions options);
  ~Launcher();

  /// The exit code for `muster run`: 0, that of the task that failed, 128 + the signal that ended it or us,
  /// or 1 when the job was aborted elsewhere.
  int run();

 private:
  struct Task {
    TaskName name;
    Environment environment;
    std::vector<int> cores;  // that it is bound to; empty: all
    std::unique_ptr<TaskProcess> process;
    int restarts = 0;
    bool told_to_stop = false;
    bool given_up = false;  // by the coordinator, though it may still be running
  };
  enum class Status { kRunning, kFinishing, kStopping };

  ClusterSpec rendezvous_unless_interrupted();
  void start_tasks(const ClusterSpec& cluster);
  void say_binding(const std::vector<TaskName>& names, const std::vector<std::vector<int>>& cores);
  void start(size_t index);

  void poll_once();
  void suspend_tasks(bool stops);
  void read_signals();
  void check_output();
  void interrupt(int signal, const std::string& what);
  void read_output(size_t index, int stream);
  void reap();
  void end_adopted();
  bool is_ours(pid_t process) const;
  void task_ended(size_t index);
  bool goes_on_without(const Task& task);
  void note_failures();
  void say_ended_in_the_middle(const Task& task);
  void check_done();
  void wait_for_other_nodes();
  void begin_finishing();
  void begin_stopping(int exit_code, bool at_once);
  void stop_tasks(int signal);
  std::string running_tasks() const;  // "2 tasks"
  bool any_running(bool workers_only) const;
  bool any_worker_ended_well() const;
  std::optional<Member::Ended> aborted();
  struct Outcome {
    std::string text;
    int exit_code = 0;
    std::vector<std::string> last_lines;  // of `task`, when it gave no reason
    std::string task;
  };
  Outcome outcome();
  bool may_begin_again();
  void begin_again();
  void say_who_did_not_enter();
  int conclude();
  void say(const std::string& line) { output_->say(line); }
  size_t index_of(const TaskName& name) const;

  const LaunchOptions options_;
  const std::string program_;
  const bool goes_on_;  // when a worker fails
  OrphanReaper reaper_;
  const AdoptedProcesses adopted_;
  const LauncherSignals signals_{[this](bool stops) { suspend_tasks(stops); }};
  int wake_ = -1;  // an eventfd: the job was aborted, or all nodes are done
  std::unique_ptr<TaskOutput> output_;
  std::unique_ptr<NodeRendezvous> nodes_;
  std::vector<Task> tasks_;
  int restarts_ = 0;  // of all tasks together

  Status status_ = Status::kRunning;
  std::optional<int> exit_code_;
  std::optional<size_t> first_failure_;          // of a task, that ended the job
  std::optional<size_t> last_survived_failure_;  // that did not end it
  bool interrupted_ = false;
  std::optional<Deadline> term_at_;
  std::optional<Deadline> kill_at_;

  struct Shared {  // what threads other than ours may touch
    Mutex mutex;
    std::optional<Member::Ended> aborted MUSTER_GUARDED_BY(mutex);
    std::vector<TaskInfo> failed MUSTER_GUARDED_BY(mutex);
    std::optional<bool> all_nodes_done MUSTER_GUARDED_BY(mutex);  // whether a worker ended well on any
  };
  Shared shared_;
  std::thread waiter_;  // in the launchers' barrier
};

}  // namespace muster::detail
