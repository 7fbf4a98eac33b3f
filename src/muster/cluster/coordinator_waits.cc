// What becomes of tasks that wait for each other. The rest of CoordinatorState is in coordinator_state.cc.

#include <algorithm>

#include <fmt/format.h>

#include "muster/base/log.h"
#include "muster/cluster/coordinator_state.h"

namespace muster::detail {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(250);

}  // namespace

void CoordinatorState::watch_waits(Time now) {
  if (aborted_ || finished_ || (last_look_ && now - *last_look_ < kBetweenLooks)) return;
  last_look_ = now;
  const WaitWatch::Findings findings = wait_watch_.look(view_of_waits(), now);
  for (const auto& warning : findings.warnings) log_warning("{}", warning);
  if (!findings.error.empty()) abort(findings.error, std::nullopt);
}

// Launchers wait for the end of their tasks, and hold nobody up.
WaitWatch::View CoordinatorState::view_of_waits() const {
  using Presence = WaitWatch::Task::Presence;
  WaitWatch::View view;
  for (const auto& [name, state] : tasks_) {
    if (name.job == "launcher") continue;
    WaitWatch::Task task = {.presence = Presence::kMayCome, .description = name.short_name(), .gone = ""};
    if (state.status != TaskStatus::kAbsent) task.description = state.info.describe();
    if (state.status == TaskStatus::kEntered) task.presence = Presence::kHere;
    if (state.status == TaskStatus::kLeft) task = {Presence::kGone, task.description, "has finished"};
    if (state.status == TaskStatus::kFailed && !state.ended.empty())
      task = {Presence::kGone, task.description, fmt::format("has failed: {}", state.ended)};
    task.is_observer = !state.expected;
    view.tasks[name.short_name()] = std::move(task);
  }
  view.missing = [this](const std::string& task,
                        const std::string& barrier) -> std::optional<std::vector<std::string>> {
    const Pending* pending = pending_of(task, [&](const proto::Request& request) {
      return request.has_barrier() && request.barrier().name() == barrier;
    });
    if (pending == nullptr) return std::nullopt;
    std::vector<std::string> names;
    for (const auto& name : absent_from(*pending)) names.push_back(name.short_name());
    return names;
  };
  view.waits_for_key = [this](const std::string& task, const std::string& key) {
    return pending_of(task, [&](const proto::Request& request) {
             return request.has_get() && request.get().key() == key;
           }) != nullptr;
  };
  return view;
}

const CoordinatorState::Pending* CoordinatorState::pending_of(
    const std::string& task, const std::function<bool(const proto::Request&)>& is) const {
  const auto found = std::ranges::find_if(pending_, [&](const Pending& pending) {
    return streams_.at(pending.stream).self.task.short_name() == task && is(pending.request);
  });
  return found == pending_.end() ? nullptr : &*found;
}

}  // namespace muster::detail
