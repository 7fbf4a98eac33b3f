// What members ask of the coordinator: values, barriers, and what launchers report of their tasks. The rest
// of CoordinatorState is in coordinator_state.cc.

#include <algorithm>

#include <fmt/format.h>

#include "muster/cluster/coordinator_protocol.h"
#include "muster/cluster/coordinator_state.h"

namespace muster::detail {

namespace {

std::string never_complete(const std::string& barrier, const TaskName& gone) {
  if (barrier.starts_with("muster/"))  // it means nothing to a program
    return fmt::format(
        "{} has already finished, without what other tasks do together: Trainers and collectives are for "
        "all workers, not only for some",
        gone.short_name());
  return fmt::format("barrier '{}' can't complete: {} has already finished", barrier, gone.short_name());
}

}  // namespace

void CoordinatorState::on_request(StreamId id, const proto::Request& request, Time now) {
  Pending pending = {.stream = id, .request = request, .started = now};
  if (request.timeout_ms() >= 0) pending.deadline = now + std::chrono::milliseconds(request.timeout_ms());
  switch (request.what_case()) {
    case proto::Request::kPut: {
      const auto& put = request.put();
      values_[put.key()] = put.value();
      Release release;
      add_reply(release, pending, proto::Reply::OK, "");
      std::vector<Pending> waiting;
      std::swap(waiting, pending_);
      for (auto& other : waiting) {
        if (other.request.has_get() && other.request.get().key() == put.key()) {
          add_reply(release, other, proto::Reply::OK, "", put.value());
        } else {
          pending_.push_back(std::move(other));
        }
      }
      return send(std::move(release));
    }
    case proto::Request::kGet: {
      const auto found = values_.find(request.get().key());
      if (found != values_.end()) return reply(pending, proto::Reply::OK, "", found->second);
      pending_.push_back(std::move(pending));
      return;
    }
    case proto::Request::kBarrier: {
      const auto& barrier = request.barrier();
      const auto& self = streams_.at(id).self.task;
      pending.generation = arrivals_[barrier.name()][self] + 1;
      const auto members = participants(meeting_of(pending));
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
      arrivals_[barrier.name()][self] = pending.generation;
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

// The launchers of a job are observers, but have barriers of their own. A job that goes on counts only
// workers that are there. One that was started again comes to its first barriers when the others have long
// been to them. So it does not wait for those who have passed, and is not waited for where it must come more
// than once more: what workers bring to the same barrier at different times is never put together.
std::vector<TaskName> CoordinatorState::participants(const Meeting& meeting) const {
  const proto::Barrier& barrier = meeting.any->request.barrier();
  std::vector<TaskName> names;
  const auto arrivals = arrivals_.find(barrier.name());
  for (const auto& [name, state] : tasks_) {
    if (!(barrier.job().empty() ? state.expected : *name.job == barrier.job())) continue;
    if (goes_on_without(name)) {
      if (state.status == TaskStatus::kFailed || state.status == TaskStatus::kLeft) continue;
      const auto found = arrivals->second.find(name);
      const uint64_t came = found == arrivals->second.end() ? 0 : found->second;
      const bool comes_next = came + 1 == meeting.any->generation;
      if (!comes_next && meeting.of(state) == nullptr) continue;
    }
    names.push_back(name);
  }
  return names;
}

bool CoordinatorState::goes_on_without(const TaskName& task) const {
  return options_.failure_policy == FailurePolicy::kGoOn && is_worker(task);
}

// Those who wait in the same barrier as `pending`.
CoordinatorState::Meeting CoordinatorState::meeting_of(const Pending& pending) const {
  Meeting meeting = {.any = &pending, .here = {}};
  for (const auto& other : pending_) {
    if (is_same_meeting(other, pending)) meeting.here[other.stream] = &other;
  }
  meeting.here[pending.stream] = &pending;
  return meeting;
}

bool CoordinatorState::is_same_meeting(const Pending& one, const Pending& other) const {
  return one.request.has_barrier() && one.request.barrier().name() == other.request.barrier().name() &&
         (options_.failure_policy != FailurePolicy::kGoOn || one.generation == other.generation);
}

// All who wait in the same barrier are answered together.
void CoordinatorState::settle_barriers() {
  std::vector<Pending> waiting;
  std::swap(waiting, pending_);
  std::vector<Meeting> meetings;
  for (const auto& pending : waiting) {
    if (!pending.request.has_barrier()) continue;
    const auto same = std::ranges::find_if(
        meetings, [&](const Meeting& meeting) { return is_same_meeting(pending, *meeting.any); });
    Meeting& meeting =
        same == meetings.end() ? meetings.emplace_back(Meeting{.any = &pending, .here = {}}) : *same;
    meeting.here[pending.stream] = &pending;
  }
  std::set<const Pending*> answered;
  for (const auto& meeting : meetings) {
    const auto members = participants(meeting);
    std::vector<std::string> values;
    const TaskName* gone = nullptr;
    for (const auto& name : members) {
      const TaskState& state = tasks_.at(name);
      if (const Pending* here = meeting.of(state)) {
        values.push_back(here->request.barrier().value());
      } else if (state.status == TaskStatus::kLeft) {
        gone = &name;
      }
    }
    const bool complete = values.size() == members.size();
    if (!complete && gone == nullptr) continue;
    Release release;
    for (const auto& [stream, pending] : meeting.here) {
      answered.insert(pending);
      if (complete) {
        add_reply(release, *pending, proto::Reply::OK, "", "", values);
      } else {
        add_reply(release, *pending, proto::Reply::PEER_LOST,
                  never_complete(pending->request.barrier().name(), *gone));
      }
    }
    send(std::move(release));
  }
  for (const auto& pending : waiting) {
    if (!answered.contains(&pending)) pending_.push_back(pending);
  }
}

void CoordinatorState::reply(const Pending& pending, proto::Reply::Code code, const std::string& text,
                             const std::string& value, const std::vector<std::string>& values) {
  Release release;
  add_reply(release, pending, code, text, value, values);
  for (auto& [stream, message] : release.answers) actions_.send(stream, std::move(message));
}

void CoordinatorState::add_reply(Release& release, const Pending& pending, proto::Reply::Code code,
                                 const std::string& text, const std::string& value,
                                 const std::vector<std::string>& values) {
  proto::FromCoordinator message;
  auto& answer = *message.mutable_reply();
  answer.set_id(pending.request.id());
  answer.set_code(code);
  answer.set_message(text);
  answer.set_value(value);
  answer.mutable_values()->Add(values.begin(), values.end());
  release.answers.emplace_back(pending.stream, std::move(message));
  if (pending.away) release.awaited.emplace(pending.stream, pending.request.id());
}

// Nobody goes on before all are counted on again: else an update could go without one of them.
void CoordinatorState::send(Release release) {
  for (const auto& [stream, request] : release.awaited) {
    proto::FromCoordinator message;
    message.mutable_return_now()->set_request(request);
    actions_.send(stream, std::move(message));
  }
  releases_.push_back(std::move(release));
  send_complete_releases();
}

// A request that has been answered meanwhile needs no leave.
void CoordinatorState::on_away(StreamId id, uint64_t request) {
  const auto found = std::ranges::find_if(pending_, [&](const Pending& pending) {
    return pending.stream == id && pending.request.id() == request;
  });
  if (found == pending_.end()) return;
  found->away = true;
  proto::FromCoordinator message;
  message.mutable_away_granted()->set_request(request);
  actions_.send(id, std::move(message));
}

// Also when the task is gone, with all its requests.
void CoordinatorState::on_returned(StreamId id, std::optional<uint64_t> request) {
  for (auto& release : releases_) {
    std::erase_if(release.awaited, [&](const auto& awaited) {
      return awaited.first == id && (!request || awaited.second == *request);
    });
  }
  send_complete_releases();
}

void CoordinatorState::send_complete_releases() {
  std::vector<Release> complete;
  for (auto release = releases_.begin(); release != releases_.end();) {
    if (release->awaited.empty()) {
      complete.push_back(std::move(*release));
      release = releases_.erase(release);
    } else {
      ++release;
    }
  }
  for (auto& release : complete) {
    for (auto& [stream, message] : release.answers) {
      if (streams_.contains(stream)) actions_.send(stream, std::move(message));
    }
  }
}

std::vector<TaskName> CoordinatorState::absent_from(const Pending& pending) const {
  const Meeting meeting = meeting_of(pending);
  auto absent = participants(meeting);
  std::erase_if(absent, [&](const TaskName& name) { return meeting.of(tasks_.at(name)) != nullptr; });
  return absent;
}

std::string CoordinatorState::what_is_missing(const Pending& pending, Time now) const {
  const std::string after = format_seconds(now - pending.started);
  if (pending.request.has_get())
    return fmt::format("nobody put the key '{}' within {}", pending.request.get().key(), after);
  const auto& barrier = pending.request.barrier();
  std::vector<std::string> absent;
  for (const auto& name : absent_from(pending)) {
    const TaskState& state = tasks_.at(name);
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
