#include "muster/cluster/known_tasks.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/cluster/protocol.h"

namespace muster {

void KnownTasks::update(const proto::Assembled& message) {
  all_.emplace();
  const auto known = std::exchange(lost_, {});
  for (const auto& task : message.lost()) lost_.insert(from_proto(task));
  for (const auto& task : message.tasks()) {
    all_->push_back(from_proto(task));
    const auto& name = all_->back().task;
    if (lost_.contains(name) && !known.contains(name)) losses_.push_back(all_->back());
  }
}

void KnownTasks::update(const proto::Lost& message) {
  losses_.push_back(from_proto(message.task()));
  lost_.insert(losses_.back().task);
}

const TaskInfo* KnownTasks::living(const TaskName& name) const {
  if (!all_) return nullptr;
  const auto found =
      std::find_if(all_->begin(), all_->end(), [&](const TaskInfo& info) { return info.task == name; });
  if (found == all_->end()) raise<InvalidArgument>("the job has no task {}", name.to_string());
  return lost_.contains(name) ? nullptr : &*found;
}

}  // namespace muster
