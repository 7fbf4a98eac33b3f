#pragma once

// What a member has been told of the tasks of its job: the latest of each, and which have failed. Not
// thread-safe. Internal to the room: it includes generated code.

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "muster/cluster/coordinator.pb.h"
#include "muster/cluster/task_info.h"

namespace muster::detail {

class KnownTasks {
 public:
  void update(const proto::Assembled& message);
  void update(const proto::TaskFailed& message);

  /// Empty until all have entered once.
  const std::optional<std::vector<TaskInfo>>& all() const { return all_; }

  /// Null before all have entered, and once it has failed until it enters again. Throws InvalidArgument
  /// when the job has no such task.
  const TaskInfo* living(const TaskName& name) const;

  /// The tasks that have failed since this was last called; the first time, also those from before this
  /// task entered.
  std::vector<TaskInfo> take_failures() { return std::exchange(failures_, {}); }
  bool has_failures() const { return !failures_.empty(); }

 private:
  std::optional<std::vector<TaskInfo>> all_;
  std::set<TaskName> failed_;
  std::vector<TaskInfo> failures_;
};

}  // namespace muster::detail
