#pragma once

// Who am I? Each launcher says it in variables of its own; this reads them all into one answer.
//
// In order of preference: Muster's flags and variables (--task, --cluster), TF_CONFIG, torchrun's, Open
// MPI's, PMI's and PMIx's, Slurm's; else a process alone. When several speak, they must agree on task and
// number of tasks: a disagreement is an error that shows both. (Slurm is not compared with MPI's launchers,
// which use it to start their own daemons.)

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/config.h"
#include "muster/base/task_name.h"
#include "muster/cluster/cluster_spec.h"

namespace muster::detail {

/// The number of tasks of each job, by index: {"ps": {0}, "worker": {0, 1}}.
using TaskSet = std::map<std::string, std::vector<int>>;

struct Identity {
  std::string launcher;  ///< "Muster", "TF_CONFIG", "torchrun", "Open MPI", "PMI", "Slurm", or "none"
  TaskName task;
  TaskSet tasks;
  ClusterSpec cluster;  ///< empty when the launcher does not give addresses
  std::string job_id;

  /// Where the coordinator may listen: the first that is free at the chief, found by job id by the others.
  /// Empty for a process alone.
  std::vector<Address> coordinator;
  bool hosts_coordinator = false;  ///< this task starts the coordinator itself; false under `muster run`

  bool alone() const { return coordinator.empty(); }
  bool is_chief() const { return task == TaskName::of("worker", 0); }
  bool is_server() const { return task.job == "ps"; }
  /// An evaluator watches the job; the job does not wait for it.
  bool is_observer() const { return task.job == "evaluator"; }
  int count(const std::string& job) const;
};

/// Where the coordinator of a job may listen on `host` when all that is known of the job is its id.
std::vector<Address> derived_addresses(const std::string& host, const std::string& job_id);

/// Throws InvalidArgument: incomplete or malformed variables, two launchers that disagree, or several hosts
/// without a way to find the chief (with the remedy).
Identity find_identity(const Config& config);

/// Throws InvalidArgument when a setting can have no effect in a job of these tasks, as Config::check does.
void check_settings(const Config& config, const TaskSet& tasks);

/// Removes the variables by which any launcher gives an identity, for a process that is to get another one.
void forget_launchers(Environment& environment);

}  // namespace muster::detail
