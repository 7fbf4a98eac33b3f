#include "muster/cluster/known_tasks.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/cluster/coordinator_protocol.h"

namespace muster::detail {

void KnownTasks::update(const proto::Assembled& message) {
  all_.emplace();
  const auto known = std::exchange(failed_, {});
  for (const auto& task : message.failed()) failed_.insert(from_proto(task));
  for (const auto& task : message.tasks()) {
    all_->push_back(from_proto(task));
    const auto& name = all_->back().task;
    if (failed_.contains(name) && !known.contains(name)) failures_.push_back(all_->back());
  }
}

void KnownTasks::update(const proto::TaskFailed& message) {
  failures_.push_back(from_proto(message.task()));
  failed_.insert(failures_.back().task);
}

const TaskInfo* KnownTasks::living(const TaskName& name) const {
  if (!all_) return nullptr;
  const auto found =
      std::find_if(all_->begin(), all_->end(), [&](const TaskInfo& info) { return info.task == name; });
  if (found == all_->end()) raise<InvalidArgument>("the job has no task {}", name.to_string());
  return failed_.contains(name) ? nullptr : &*found;
}

}  // namespace muster::detail
