#pragma once

// The specification of a launch: which tasks each node runs, and what each task is told. Pure values and
// functions.
//
// --workers and --ps are those of the whole job. Each node runs consecutive tasks of each job;
// when they do not divide evenly, the first nodes run one more.

#include <map>
#include <string>
#include <vector>

#include "muster/base/config.h"
#include "muster/cluster/cluster_spec.h"
#include "muster/cluster/identity.h"

namespace muster::detail {

struct LaunchSpec {
  int workers = 1;
  int servers = 0;
  int nodes = 1;

  /// Throws InvalidArgument for what can't be: no worker, a node without a task.
  void check() const;

  /// Throws InvalidArgument when a node with `cores` cores would run more tasks than it can take.
  void check_load(int node, int cores) const;

  /// All tasks of the job. Throws as check() does.
  TaskSet tasks() const;

  /// Those that node `node` runs; servers first, since workers look for them.
  std::vector<TaskName> tasks_of_node(int node) const;
};

struct TaskVariables {
  TaskName task;
  LaunchSpec spec;
  int node = 0;
  ClusterSpec cluster;
  Address master;  ///< where torch.distributed of worker 0 may listen
};

/// `environment` with the identity of the task in Muster's, TensorFlow's and torchrun's variables. `config`
/// has what is the same for all tasks: coordinator, job id, secret, timeouts.
Environment environment_of_task(Environment environment, Config config, const TaskVariables& variables);

}  // namespace muster::detail
