#pragma once

// A task's membership of its job: the client of the Coordinator. It enters, proves the secret, keeps its
// heartbeat, and offers key-value, barriers, abort and a clean end.
//
//   Member member({.coordinator = {address},
//                  .job_id = "j",
//                  .secret = "s",
//                  .task = TaskName::of("worker", 1),
//                  .tasks = {{"worker", {0, 1}}}},
//                 deadline);
//   auto tasks = member.wait_assembled(deadline);       // everybody is here
//   member.barrier("start", deadline);
//   member.leave(deadline);
//
// Thread-safe, but for the destructor; each call blocks no longer than its deadline. An abort, the end of the
// coordinator, or being given up by it is sticky: pending and later calls throw the same error. A Member that
// is destroyed without leave() counts as failed.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/wait_registry.h"
#include "muster/cluster/identity.h"
#include "muster/cluster/task_info.h"
#include "muster/deadline.h"
#include "muster/net/address.h"

namespace muster::detail {

class Member {
 public:
  /// How a membership ended.
  struct Ended {
    std::string reason;
    std::optional<TaskName> by;  ///< the task at fault, when it was one
    bool died = false;           ///< the process of that task has ended
    bool said = false;           ///< that task gave the reason, and has logged it
    bool aborted = false;        ///< by the coordinator, which says why when it was nobody's fault
  };

  struct Options {
    std::vector<Address> coordinator;  ///< where it may listen; tried in turn until one serves this job
    std::string job_id;
    std::string secret;
    TaskName task;
    TaskSet tasks;          ///< of the whole job; all members must have been told the same
    std::string address;    ///< where this task can be reached, for the others
    bool observer = false;  ///< not part of the cluster: launchers, evaluators
    int incarnation = 0;
    WaitRegistry* waits = nullptr;  ///< what this task waits for, which heartbeats tell; outlives the Member
    /// Called once, from a thread of the Member's, when the membership ends other than by leave(). May be
    /// empty.
    std::function<void(const Ended& ended)> on_ended;
    /// Called from the same thread for each task that fails while the job goes on, and for those that had
    /// failed when this one entered. Heartbeats wait for it: it must return soon, and not destroy the Member.
    /// May be empty.
    std::function<void(const TaskInfo& task)> on_task_failed;
  };

  /// Enters the job. Throws Refused (wrong secret, name taken, job aborted) with the coordinator's reason,
  /// and DeadlineExceeded when no coordinator of this job answers in time.
  Member(Options options, Deadline deadline);
  ~Member();

  /// Waits until all tasks have entered; gives what is known of each, in the order of their names. A new
  /// incarnation of a task, which enters a job that is assembled, gets this at once.
  std::vector<TaskInfo> wait_assembled(Deadline deadline);

  /// Whether that wait is over.
  bool assembled() const;

  /// The task's latest incarnation. Waits for a new one when it has failed.
  TaskInfo find(const TaskName& task, Deadline deadline);

  /// Whether the task's latest incarnation has failed, and no new one has entered.
  bool has_failed(const TaskName& task) const;

  void put(const std::string& key, const std::string& value, Deadline deadline);

  /// For a task on which others count elsewhere, while it waits here. Both are called by the thread that waits:
  /// away() when the wait lasts, and then back() before anybody goes on for whom the same wait has ended. May
  /// throw.
  struct Absence {
    std::function<void()> away;
    std::function<void()> back;
  };

  /// Waits until somebody has put `key`; gives what was put last.
  std::string get(const std::string& key, Deadline deadline, const Absence* absence = nullptr);

  /// Waits until all tasks of `job` (empty: of the cluster) are in the barrier of this name; in a job that
  /// goes on without workers that have failed, all that are there. The name can be used again afterwards.
  void barrier(const std::string& name, Deadline deadline, const std::string& job = "");

  /// The same, and gives what each of the tasks brought, in the order of their names.
  std::vector<std::string> gather(const std::string& name, const std::string& value, Deadline deadline,
                                  const std::string& job = "", const Absence* absence = nullptr);

  /// Ends the job for all tasks, for this reason. Returns when the coordinator has it, or is gone. A launcher
  /// may say which of its tasks is at fault.
  void abort(const std::string& reason, const std::optional<TaskName>& by = {});

  /// Waits until all workers have left, or have failed and the job went on; for servers, which have nothing
  /// else to wait for.
  void wait_finished(Deadline deadline);

  /// Whether that wait is over.
  bool finished() const;

  /// For launchers: a task's process has ended ("exited with code 3") and will not be started again. Throws
  /// Aborted when that ends the job: others wait for it and it never entered, or it was the last worker.
  void exited(const TaskName& task, const std::string& how, Deadline deadline);

  /// This task is done. What other threads wait for here ends, and throws Aborted, as all later calls do.
  void leave(Deadline deadline);

  /// The same without a word to the coordinator, for which this task has failed unless it has left.
  void close();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::detail
