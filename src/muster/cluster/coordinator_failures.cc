// What becomes of the job when a task fails. The rest of CoordinatorState is in coordinator_state.cc.

#include <algorithm>

#include <fmt/format.h>

#include "muster/base/log.h"
#include "muster/cluster/coordinator_protocol.h"
#include "muster/cluster/coordinator_state.h"

namespace muster::detail {

void CoordinatorState::fail(StreamId id, Stream& stream, const TaskFailure& failure, Time now) {
  const std::string& how = failure.how;
  std::string where;
  for (const auto& pending : pending_) {
    if (pending.stream == id && pending.request.has_barrier()) {
      where = fmt::format(" while it waited in barrier '{}'", pending.request.barrier().name());
    }
  }
  TaskState& state = tasks_.at(stream.self.task);
  state.status = TaskStatus::kFailed;
  if (!failure.may_return) state.ended = how;
  drop_requests_of(id);
  send_refusal_and_close(id, stream, fmt::format("the coordinator gave up on this task: {}", how),
                         proto::Refusal::FINAL);
  if (aborted_ || finished_) return;
  const std::string reason = fmt::format("{} failed{}: {}; last heard of {} ago", state.info.describe(),
                                         where, how, format_seconds(now - stream.last_heard));
  const bool is_launcher = state.info.task.job == "launcher";
  if (is_launcher || (state.expected && !survives_failures()))
    return abort({.reason = reason, .by = state.info.task, .died = failure.died});
  if (!state.expected) return log_warning("{}", reason);
  tell_of_failure(state.info);
  if (options_.failure_policy == FailurePolicy::kWait) return log_warning("{}", reason);
  if (!no_worker_is_left()) {
    log_warning("{} failed{}: {}; {}", state.info.describe(), where, how,
                is_worker(state.info.task) ? "the job goes on without it" : "the workers wait for it");
  }
  settle_failure(state);
}

void CoordinatorState::exited(const TaskName& task, const std::string& how, Time now) {
  const auto found = tasks_.find(task);
  if (found == tasks_.end() || aborted_ || finished_) return;
  TaskState& state = found->second;
  if (state.status == TaskStatus::kAbsent) {
    state.ended = how;
    return abort_if_a_task_never_enters();
  }
  if (options_.failure_policy == FailurePolicy::kWait) return;  // its stream tells what became of it
  if (state.status == TaskStatus::kEntered) {
    fail(state.stream, streams_.at(state.stream), {.how = how, .died = true}, now);
  } else if (state.status == TaskStatus::kFailed && state.ended.empty()) {
    state.ended = how;
    settle_failure(state);
  }
}

// A program that is not built on Muster never enters: as long as nobody has entered, nobody waits for it.
void CoordinatorState::abort_if_a_task_never_enters() {
  if (aborted_ || options_.failure_policy == FailurePolicy::kWait) return;
  const bool anybody = std::any_of(tasks_.begin(), tasks_.end(), [](const auto& other) {
    return other.second.expected && other.second.status == TaskStatus::kEntered;
  });
  if (!anybody) return;
  for (const auto& [name, state] : tasks_) {
    if (state.expected && state.status == TaskStatus::kAbsent && !state.ended.empty()) {
      return abort(fmt::format("{} {} before it entered the job", name.short_name(), state.ended), name);
    }
  }
}

// A job that has never been whole has nothing to go on with, unless the task comes again.
bool CoordinatorState::survives_failures() const {
  switch (options_.failure_policy) {
    case FailurePolicy::kAbort:
      return false;
    case FailurePolicy::kWait:
      return true;
    case FailurePolicy::kGoOn:
      return assembled_ || options_.restarts;
  }
  return false;
}

void CoordinatorState::tell_of_failure(const TaskInfo& task) {
  proto::FromCoordinator message;
  *message.mutable_task_failed()->mutable_task() = to_proto(task);
  broadcast(message);
}

// The end of the last worker is the job's; else those who waited for this one need not any more.
void CoordinatorState::settle_failure(const TaskState& failed) {
  if (no_worker_is_left()) {
    return abort(fmt::format("{} failed: {}; it was the last worker", failed.info.describe(), failed.ended),
                 failed.info.task);
  }
  settle_barriers();
  check_finished();
}

bool CoordinatorState::is_worker(const TaskName& name) {
  return name.job != "ps";
}

bool CoordinatorState::is_given_up(const TaskName& name, const TaskState& state) const {
  return options_.failure_policy == FailurePolicy::kGoOn && is_worker(name) &&
         state.status == TaskStatus::kFailed && !state.ended.empty();
}

bool CoordinatorState::no_worker_is_left() const {
  return std::all_of(tasks_.begin(), tasks_.end(), [this](const auto& task) {
    const auto& [name, state] = task;
    return !state.expected || !is_worker(name) || is_given_up(name, state);
  });
}

void CoordinatorState::check_finished() {
  if (finished_) return;
  for (const auto& [name, state] : tasks_) {
    if (!state.expected || !is_worker(name) || is_given_up(name, state)) continue;
    if (state.status != TaskStatus::kLeft) return;
  }
  finished_ = true;
  proto::FromCoordinator message;
  message.mutable_finished();
  broadcast(message);
}

}  // namespace muster::detail
