#pragma once

// Decides, for all replicas of a graph that train together (muster/sync_replicas.h), what becomes of their
// gradients: by the rules of the parameter servers' mode sync (ps/policy/update_policy.h), on the task that
// has the global step. Gradients lie with their variables (accumulator.h). A run of the step is
//
//   keep          on each variable's task: the gradient
//   push          here: the policy decides; what is to be carried out now, most often nothing, comes out
//   carry_out     on each variable's task
//   carried_out   here: the global step grows, and tokens may be given
//   wait          here: until the replica has a token for its next run
//
// so that an update is carried out by the run that made it complete. Commands that are not known to be
// carried out everywhere are given to each run that pushes; accumulators take each once. When all runs that
// had been given one have failed, those who wait are let go without a token: one of their next runs carries
// it out.
//
// Thread-safe. Only wait() blocks, until there is a token, its run was aborted or its session has ended.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/ps/policy/update_policy.h"
#include "muster/runtime/accumulator.h"
#include "muster/runtime/replica_commands.h"
#include "muster/runtime/variables.h"

namespace muster::detail {

/// How many replicas there are, and how many gradients make an update. Throws InvalidArgument as UpdatePolicy
/// does.
PolicyOptions replica_options(int64_t workers, int64_t aggregate);

class ReplicaCoordinator {
 public:
  /// The run of a worker that asks.
  struct Run {
    int64_t worker = 0;
    uint64_t session = 0;
    uint64_t step = 0;  ///< a number that no other run has; it names the run's gradients
  };

  /// The variable of the global step outlives it. After `stall_warning` a wait says for whom; 0: never.
  ReplicaCoordinator(const PolicyOptions& options, TaskVariable& global_step,
                     std::chrono::milliseconds stall_warning);

  /// Throws InvalidArgument where a worker has other numbers than the first had.
  void check_options(const PolicyOptions& options) const;

  /// The gradients of the run are kept on all tasks. Gives what is to be carried out now. A worker that is new
  /// here enters. Throws InvalidArgument for a worker that there is not, and where another session has entered
  /// as the same worker.
  CommandList push(const Run& run, double lr);

  /// The run has carried out what push() gave it, up to this number.
  void carried_out(const Run& run, int64_t number);

  /// Until the worker has a token, or somebody has to carry something out. `check` is called about every 50 ms
  /// and throws when the run was aborted. A later wait for the same worker ends an earlier one with Aborted.
  void wait(const Run& run, const std::function<void()>& check);

  /// The run has failed.
  void end_run(uint64_t step);

  /// Its workers have left.
  void end_session(uint64_t session);

 private:
  struct Token {
    int64_t step = 0;
    int64_t version = 0;
    int64_t after = 0;  // the command that has to be carried out before it is given
  };

  struct Worker {
    std::optional<uint64_t> session;  // empty: it is not here
    int incarnation = -1;
    std::optional<Token> offered;
    std::optional<Token> held;  // its session knows of it: what it reads now is of this step
    uint64_t waits = 0;
  };

  Worker& enter(const Run& run) MUSTER_REQUIRES(mutex_);
  void take(Decision decision) MUSTER_REQUIRES(mutex_);
  bool is_abandoned() const MUSTER_REQUIRES(mutex_);
  void say_what_is_missing(int64_t worker) const MUSTER_REQUIRES(mutex_);

  const PolicyOptions options_;
  const std::chrono::milliseconds stall_warning_;
  const uint64_t number_;  // of this coordinator; no other has it
  TaskVariable& global_step_;
  Mutex mutex_;
  ConditionVariable changed_;
  UpdatePolicy policy_ MUSTER_GUARDED_BY(mutex_);
  std::vector<Worker> workers_ MUSTER_GUARDED_BY(mutex_);
  std::set<uint64_t> gone_ MUSTER_GUARDED_BY(mutex_);  // sessions that have ended, or were taken for dead
  std::deque<NumberedCommand> pending_ MUSTER_GUARDED_BY(mutex_);
  std::map<uint64_t, int64_t> carrying_ MUSTER_GUARDED_BY(mutex_);  // runs, and their last command
  int64_t last_number_ MUSTER_GUARDED_BY(mutex_) = 0;
  int64_t carried_out_ MUSTER_GUARDED_BY(mutex_) = 0;
  int64_t step_ MUSTER_GUARDED_BY(mutex_) = 0;  // the policy's, as of the last command that was carried out
};

/// What a container has for replicas, beside variables. `group` names the step that they train by.
/// Thread-safe; what it gives lives as long as it.
class Replicas {
 public:
  explicit Replicas(std::chrono::milliseconds stall_warning) : stall_warning_(stall_warning) {}

  ReplicaCoordinator& coordinator(const std::string& group, const PolicyOptions& options,
                                  TaskVariable& global_step);
  Accumulator& accumulator(const std::string& group, TaskVariable& variable);

  void end_run(uint64_t step);
  void end_session(uint64_t session);

 private:
  const std::chrono::milliseconds stall_warning_;
  Mutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<ReplicaCoordinator>> coordinators_
      MUSTER_GUARDED_BY(mutex_);
  std::map<std::pair<std::string, const TaskVariable*>, std::unique_ptr<Accumulator>> accumulators_
      MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::detail
