// What becomes of the job when a task is no more. The rest of CoordinatorState is in coordinator_state.cc.

#include <algorithm>

#include <fmt/format.h>

#include "muster/base/log.h"
#include "muster/cluster/coordinator_state.h"
#include "muster/cluster/protocol.h"

namespace muster {

void CoordinatorState::lose(SessionId id, Session& session, const std::string& how, Return chance, Time now) {
  std::string where;
  for (const auto& pending : pending_) {
    if (pending.session == id && pending.request.has_barrier()) {
      where = fmt::format(" while it waited in barrier '{}'", pending.request.barrier().name());
    }
  }
  TaskState& state = tasks_.at(session.self.task);
  state.phase = Phase::kLost;
  if (chance == Return::kNever) state.ended = how;
  drop_requests_of(id);
  turn_away(id, session, fmt::format("the coordinator gave up on this task: {}", how), proto::Refusal::FINAL);
  if (aborted_ || finished_) return;
  const std::string reason = fmt::format("{} was lost{}: {}; last heard of {} ago", state.info.describe(),
                                         where, how, format_seconds(now - session.last_heard));
  const bool is_launcher = state.info.task.job == "launcher";
  if (is_launcher || (state.expected && !survives_losses())) return abort(reason, state.info.task);
  if (!state.expected) return log_warning("{}", reason);
  tell_of_loss(state.info);
  if (options_.loss_policy == LossPolicy::kRejoin) return log_warning("{}", reason);
  if (!no_worker_is_left()) {
    log_warning("{} is lost{}: {}; {}", state.info.describe(), where, how,
                is_worker(state.info.task) ? "the job goes on without it" : "the workers wait for it");
  }
  settle_loss(state);
}

void CoordinatorState::exited(const TaskName& task, const std::string& how, Time now) {
  const auto found = tasks_.find(task);
  if (found == tasks_.end() || aborted_ || finished_) return;
  TaskState& state = found->second;
  if (state.phase == Phase::kAbsent) {
    state.ended = how;
    return abort_if_some_never_come();
  }
  if (options_.loss_policy != LossPolicy::kGoOn) return;  // its stream tells what became of it
  if (state.phase == Phase::kJoined) {
    lose(state.session, sessions_.at(state.session), how, Return::kNever, now);
  } else if (state.phase == Phase::kLost && state.ended.empty()) {
    state.ended = how;
    settle_loss(state);
  }
}

// A program that is not built on Muster never joins: as long as nobody has joined, nobody waits for it.
void CoordinatorState::abort_if_some_never_come() {
  if (aborted_ || options_.loss_policy == LossPolicy::kRejoin) return;
  const bool anybody = std::any_of(tasks_.begin(), tasks_.end(), [](const auto& other) {
    return other.second.expected && other.second.phase == Phase::kJoined;
  });
  if (!anybody) return;
  for (const auto& [name, state] : tasks_) {
    if (state.expected && state.phase == Phase::kAbsent && !state.ended.empty()) {
      return abort(fmt::format("{} {} before it joined", name.short_name(), state.ended), name);
    }
  }
}

// A job that has never been whole has nothing to go on with, unless the task comes again.
bool CoordinatorState::survives_losses() const {
  switch (options_.loss_policy) {
    case LossPolicy::kAbort:
      return false;
    case LossPolicy::kRejoin:
      return true;
    case LossPolicy::kGoOn:
      return assembled_ || options_.restarts;
  }
  return false;
}

void CoordinatorState::tell_of_loss(const TaskInfo& task) {
  proto::FromCoordinator message;
  *message.mutable_lost()->mutable_task() = to_proto(task);
  broadcast(message);
}

// The end of the last worker is the job's; else those who waited for this one need not any more.
void CoordinatorState::settle_loss(const TaskState& lost) {
  if (no_worker_is_left()) {
    return abort(fmt::format("{} is lost: {}; it was the last worker", lost.info.describe(), lost.ended),
                 lost.info.task);
  }
  settle_barriers();
  check_finished();
}

bool CoordinatorState::is_worker(const TaskName& name) {
  return name.job != "ps";
}

bool CoordinatorState::is_given_up(const TaskName& name, const TaskState& state) const {
  return options_.loss_policy == LossPolicy::kGoOn && is_worker(name) && state.phase == Phase::kLost &&
         !state.ended.empty();
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
    if (state.phase != Phase::kLeft) return;
  }
  finished_ = true;
  proto::FromCoordinator message;
  message.mutable_finished();
  broadcast(message);
}

}  // namespace muster
