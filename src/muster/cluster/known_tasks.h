#pragma once

// What a member has been told of the tasks of its job: the latest of each, and which are lost. Not
// thread-safe. Internal to the room: it includes generated code.

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "muster/cluster/coordinator.pb.h"
#include "muster/cluster/task_info.h"

namespace muster {

class KnownTasks {
 public:
  void update(const proto::Assembled& message);
  void update(const proto::Lost& message);

  /// Empty until all have joined once.
  const std::optional<std::vector<TaskInfo>>& all() const { return all_; }

  /// Null before all have joined, and while it is lost. Throws InvalidArgument when the job has no such task.
  const TaskInfo* living(const TaskName& name) const;

  /// The losses since this was last called; the first time, also those from before this task joined.
  std::vector<TaskInfo> take_losses() { return std::exchange(losses_, {}); }
  bool has_losses() const { return !losses_.empty(); }

 private:
  std::optional<std::vector<TaskInfo>> all_;
  std::set<TaskName> lost_;
  std::vector<TaskInfo> losses_;
};

}  // namespace muster
