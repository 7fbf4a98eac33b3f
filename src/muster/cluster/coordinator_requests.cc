// What members ask of the coordinator: values, barriers, and what launchers report of their tasks. The rest
// of CoordinatorState is in coordinator_state.cc.

#include <algorithm>

#include <fmt/format.h>

#include "muster/cluster/coordinator_protocol.h"
#include "muster/cluster/coordinator_state.h"

namespace muster::detail {

void CoordinatorState::on_request(StreamId id, const proto::Request& request, Time now) {
  Pending pending = {.stream = id, .request = request, .started = now};
  if (request.timeout_ms() >= 0) pending.deadline = now + std::chrono::milliseconds(request.timeout_ms());
  switch (request.what_case()) {
    case proto::Request::kPut: {
      const auto& put = request.put();
      values_[put.key()] = put.value();
      reply(pending, proto::Reply::OK, "");
      std::vector<Pending> waiting;
      std::swap(waiting, pending_);
      for (auto& other : waiting) {
        if (other.request.has_get() && other.request.get().key() == put.key()) {
          reply(other, proto::Reply::OK, "", put.value());
        } else {
          pending_.push_back(std::move(other));
        }
      }
      return;
    }
    case proto::Request::kGet: {
      const auto found = values_.find(request.get().key());
      if (found != values_.end()) return reply(pending, proto::Reply::OK, "", found->second);
      pending_.push_back(std::move(pending));
      return;
    }
    case proto::Request::kBarrier: {
      const auto& barrier = request.barrier();
      const auto members = participants(barrier);
      const auto& self = streams_.at(id).self.task;
      if (std::find(members.begin(), members.end(), self) == members.end()) {
        return reply(
            pending, proto::Reply::INVALID_ARGUMENT,
            fmt::format("{} is not among the tasks of barrier '{}'", self.to_string(), barrier.name()));
      }
      for (const auto& other : pending_) {
        if (!other.request.has_barrier() || other.request.barrier().name() != barrier.name()) continue;
        if (other.request.barrier().job() != barrier.job()) {
          return reply(pending, proto::Reply::INVALID_ARGUMENT,
                       fmt::format("barrier '{}' is waited for by job '{}' elsewhere, and by job '{}' here",
                                   barrier.name(), other.request.barrier().job(), barrier.job()));
        }
        if (other.stream == id) {
          return reply(
              pending, proto::Reply::INVALID_ARGUMENT,
              fmt::format("{} waits in barrier '{}' twice at once", self.to_string(), barrier.name()));
        }
      }
      pending_.push_back(std::move(pending));
      return settle_barriers();
    }
    case proto::Request::kExited: {
      if (streams_.at(id).self.task.job != "launcher") {
        return reply(pending, proto::Reply::INVALID_ARGUMENT, "only launchers say that a task has ended");
      }
      exited(from_proto(request.exited().task()), request.exited().how(), now);
      if (!aborted_) reply(pending, proto::Reply::OK, "");  // else the abort was the answer
      return;
    }
    default:
      return reply(pending, proto::Reply::INVALID_ARGUMENT, "an empty request");
  }
}

// The launchers of a job are observers, but have barriers of their own. A job that goes on counts
// only workers that are there.
std::vector<TaskName> CoordinatorState::participants(const proto::Barrier& barrier) const {
  std::vector<TaskName> names;
  const bool goes_on = options_.failure_policy == FailurePolicy::kGoOn;
  for (const auto& [name, state] : tasks_) {
    const bool gone = state.status == TaskStatus::kFailed || state.status == TaskStatus::kLeft;
    if (goes_on && is_worker(name) && gone) continue;
    if (barrier.job().empty() ? state.expected : *name.job == barrier.job()) names.push_back(name);
  }
  return names;
}

void CoordinatorState::settle_barriers() {
  std::map<std::string, std::map<StreamId, std::string>> arrived;  // with what each brought
  for (const auto& pending : pending_) {
    const auto& barrier = pending.request.barrier();
    if (pending.request.has_barrier()) arrived[barrier.name()][pending.stream] = barrier.value();
  }
  std::vector<Pending> waiting;
  std::swap(waiting, pending_);
  for (auto& pending : waiting) {
    if (!pending.request.has_barrier()) {
      pending_.push_back(std::move(pending));
      continue;
    }
    const auto& barrier = pending.request.barrier();
    std::vector<std::string> values;
    const auto members = participants(barrier);
    const TaskName* gone = nullptr;
    for (const auto& name : members) {
      const TaskState& state = tasks_.at(name);
      const auto& here = arrived[barrier.name()];
      if (state.status == TaskStatus::kEntered && here.contains(state.stream)) {
        values.push_back(here.at(state.stream));
      } else if (state.status == TaskStatus::kLeft) {
        gone = &tasks_.find(name)->first;
      }
    }
    if (values.size() == members.size()) {
      reply(pending, proto::Reply::OK, "", "", values);
    } else if (gone != nullptr) {
      reply(pending, proto::Reply::PEER_LOST,
            fmt::format("barrier '{}' can't complete: {} has already finished", barrier.name(),
                        gone->to_string()));
    } else {
      pending_.push_back(std::move(pending));
    }
  }
}

void CoordinatorState::reply(const Pending& pending, proto::Reply::Code code, const std::string& text,
                             const std::string& value, const std::vector<std::string>& values) {
  proto::FromCoordinator message;
  auto& answer = *message.mutable_reply();
  answer.set_id(pending.request.id());
  answer.set_code(code);
  answer.set_message(text);
  answer.set_value(value);
  answer.mutable_values()->Add(values.begin(), values.end());
  actions_.send(pending.stream, std::move(message));
}

std::string CoordinatorState::what_is_missing(const Pending& pending, Time now) const {
  const std::string after = format_seconds(now - pending.started);
  if (pending.request.has_get())
    return fmt::format("nobody put the key '{}' within {}", pending.request.get().key(), after);
  const auto& barrier = pending.request.barrier();
  std::vector<std::string> absent;
  for (const auto& name : participants(barrier)) {
    const TaskState& state = tasks_.at(name);
    const bool here = std::any_of(pending_.begin(), pending_.end(), [&](const Pending& other) {
      return state.status == TaskStatus::kEntered && other.stream == state.stream &&
             other.request.has_barrier() && other.request.barrier().name() == barrier.name();
    });
    if (here) continue;
    if (state.status == TaskStatus::kEntered) {
      absent.push_back(fmt::format("{}, last heard of {} ago", state.info.describe(),
                                   format_seconds(now - streams_.at(state.stream).last_heard)));
    } else {
      absent.push_back(name.short_name() + (state.status == TaskStatus::kAbsent
                                                ? ", which has not entered the job"
                                                : ", which has failed"));
    }
  }
  return fmt::format("barrier '{}' did not complete within {}: still missing {}", barrier.name(), after,
                     fmt::join(absent, ", "));
}

}  // namespace muster::detail
