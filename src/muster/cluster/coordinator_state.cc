#include "muster/cluster/coordinator_state.h"

#include <algorithm>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/cluster/protocol.h"

namespace muster {
namespace {

// Whoever says nothing for so long before it has proved the secret is told to greet again, so that silent strangers
// do not pile up. A task of ours that is merely slow does so, until its own deadline.
constexpr auto kHandshakeTime = std::chrono::seconds(15);
constexpr auto kReminderInterval = std::chrono::seconds(3);

std::string join(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

proto::FromCoordinator abort_message(const CoordinatorState::AbortRecord& record) {
  proto::FromCoordinator message;
  message.mutable_abort()->set_reason(record.reason);
  if (record.by) *message.mutable_abort()->mutable_by() = to_proto(*record.by);
  return message;
}

}  // namespace

CoordinatorState::CoordinatorState(Options options, Actions actions)
    : options_(std::move(options)), secret_(options_.secret), actions_(std::move(actions)) {
  for (const auto& [job, indices] : options_.tasks) {
    for (const int index : indices) tasks_[TaskName::of(job, index)].expected = true;
  }
}

void CoordinatorState::connected(SessionId session, std::string peer, Time now) {
  sessions_[session] = {.peer = std::move(peer), .last_heard = now};
}

void CoordinatorState::received(SessionId id, const proto::FromMember& message, Time now) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  now_ = now;
  Session& session = found->second;
  session.last_heard = now;
  if (session.stage == Stage::kClosing) return;
  if (session.stage == Stage::kConnected) {
    if (message.has_hello()) return on_hello(id, session, message.hello());
    return refuse(id, session, "the first message was not a greeting");
  }
  if (session.stage == Stage::kChallenged) {
    if (message.has_proof()) return on_proof(id, session, message.proof());
    return refuse(id, session, "the challenge was not answered");
  }
  if (session.stage == Stage::kWelcomed) {
    if (const auto reason = reason_to_refuse(session)) return refuse(id, session, *reason);
    admit(id, session);
  }
  switch (message.what_case()) {
    case proto::FromMember::kHeartbeat: {
      proto::FromCoordinator answer;
      answer.mutable_heartbeat();
      return actions_.send(id, std::move(answer));
    }
    case proto::FromMember::kRequest:
      return on_request(id, message.request(), now);
    case proto::FromMember::kAbort:
      return abort(fmt::format("{}: {}", session.self.describe(), message.abort().reason()),
                   session.self.task);
    case proto::FromMember::kLeave:
      return on_leave(id, session);
    default:
      return refuse(id, session, "a message that members do not send");
  }
}

void CoordinatorState::on_hello(SessionId id, Session& session, const proto::Hello& hello) {
  session.hello = hello;
  session.self = from_proto(hello.self());
  if (hello.protocol() != kProtocolVersion) {
    return refuse(
        id, session,
        fmt::format("it speaks version {} of the protocol, and the coordinator version {}: use the same "
                    "build of Muster for all tasks",
                    hello.protocol(), kProtocolVersion));
  }
  if (hello.job_id() != options_.job_id) {
    return refuse(
        id, session,
        fmt::format("it belongs to job '{}', and this is job '{}'", hello.job_id(), options_.job_id),
        proto::Refusal::OTHER_JOB);
  }
  session.server_nonce = random_bytes(16);
  session.stage = Stage::kChallenged;
  proto::FromCoordinator message;
  message.mutable_challenge()->set_nonce(session.server_nonce);
  actions_.send(id, std::move(message));
}

std::string CoordinatorState::challenge_of(const Session& session, const char* role) const {
  return challenge_text(role, session.hello, session.server_nonce);
}

std::optional<std::string> CoordinatorState::reason_to_refuse(const Session& session) const {
  const auto& name = session.self.task;
  if (aborted_) return "the job was aborted: " + aborted_->reason;
  const auto found = tasks_.find(name);
  if (!session.hello.observer()) {
    if (found == tasks_.end() || !found->second.expected) {
      std::vector<std::string> expected;
      for (const auto& [task, state] : tasks_) {
        if (state.expected) expected.push_back(task.to_string());
      }
      return fmt::format("the job has no task {}; it has {}", name.to_string(), join(expected));
    }
    TaskSet believed;
    for (const auto& task : session.hello.tasks()) believed[task.job()].push_back(task.index());
    for (auto& [job, indices] : believed) std::sort(indices.begin(), indices.end());
    if (believed != options_.tasks) {
      const auto describe = [](const TaskSet& tasks) {
        std::vector<std::string> words;
        for (const auto& [job, indices] : tasks) words.push_back(fmt::format("{} {}", indices.size(), job));
        return join(words);
      };
      return fmt::format("it was told of a cluster of {}, and this job has {}", describe(believed),
                         describe(options_.tasks));
    }
  }
  if (found == tasks_.end()) return std::nullopt;
  const TaskState& state = found->second;
  if (state.phase == Phase::kJoined && session.self.incarnation <= state.info.incarnation) {
    return fmt::format("{} has already joined, as pid {} on host {}", name.to_string(), state.info.pid,
                       state.info.host_name);
  }
  if (state.phase == Phase::kLeft) return fmt::format("{} has already finished", name.to_string());
  return std::nullopt;
}

void CoordinatorState::on_proof(SessionId id, Session& session, const proto::Proof& proof) {
  if (!secret_.verify(challenge_of(session, "member"), proof.proof())) {
    return refuse(id, session, "it does not know the job's secret (MUSTER_SECRET)");
  }
  if (const auto reason = reason_to_refuse(session)) return refuse(id, session, *reason);
  session.stage = Stage::kWelcomed;
  proto::FromCoordinator welcome;
  welcome.mutable_welcome()->set_proof(secret_.prove(challenge_of(session, "coordinator")));
  welcome.mutable_welcome()->set_heartbeat_timeout_ms(options_.heartbeat_timeout.count());
  actions_.send(id, std::move(welcome));
}

void CoordinatorState::admit(SessionId id, Session& session) {
  TaskState& state = tasks_[session.self.task];
  if (state.phase == Phase::kJoined) {  // an earlier incarnation whose end has not been noticed yet
    const SessionId old = state.session;
    drop_requests_of(old);
    sessions_.at(old).stage = Stage::kClosing;
    actions_.close(old);
    tell_of_loss(state.info);
  }
  const bool again = state.phase != Phase::kAbsent;
  state.phase = Phase::kJoined;
  state.session = id;
  state.info = session.self;
  state.ended.clear();
  session.stage = Stage::kMember;
  if (again) {
    log_warning("{} joined again as incarnation {}", session.self.describe(), session.self.incarnation);
  } else {
    log_debug("{} joined{}", session.self.describe(),
              state.expected ? fmt::format(" ({})", joined_count()) : "");
  }
  if (state.expected) abort_if_some_never_come();
  if (state.expected || assembled_) announce_if_complete();
  if (finished_) {
    proto::FromCoordinator message;
    message.mutable_finished();
    actions_.send(id, std::move(message));
  }
}

void CoordinatorState::refuse(SessionId id, Session& session, const std::string& reason,
                              proto::Refusal::Kind kind) {
  const auto& self = session.self;
  const std::string who = self.task.job && !self.task.job->empty() ? self.describe() : "a stranger";
  if (refusals_.allows(now_))
    log_warning("refused {} at {}: {}{}", who, session.peer, reason, refusals_.left_out());
  turn_away(id, session, reason, kind);
}

void CoordinatorState::turn_away(SessionId id, Session& session, const std::string& reason,
                                 proto::Refusal::Kind kind) {
  session.stage = Stage::kClosing;
  proto::FromCoordinator message;
  message.mutable_refusal()->set_reason(reason);
  message.mutable_refusal()->set_kind(kind);
  actions_.send(id, std::move(message));
  actions_.close(id);
}

std::vector<std::string> CoordinatorState::missing() const {
  std::vector<std::string> names;
  for (const auto& [name, state] : tasks_) {
    if (state.expected && state.phase == Phase::kAbsent) names.push_back(name.to_string());
  }
  return names;
}

std::vector<std::string> CoordinatorState::present() const {
  std::vector<std::string> names;
  for (const auto& [name, state] : tasks_) {
    if (state.phase == Phase::kJoined) names.push_back(name.to_string());
  }
  return names;
}

std::string CoordinatorState::joined_count() const {
  const auto expected =
      std::count_if(tasks_.begin(), tasks_.end(), [](const auto& task) { return task.second.expected; });
  return fmt::format("{} of {} tasks joined", expected - static_cast<long>(missing().size()), expected);
}

void CoordinatorState::announce_if_complete() {
  if (aborted_ || !missing().empty()) return;
  std::set<std::string> hosts;
  for (const auto& [name, state] : tasks_) {
    if (state.expected) hosts.insert(state.info.host_identity);
  }
  proto::FromCoordinator message;
  for (const auto& [name, state] : tasks_) {
    if (!state.expected) continue;
    const auto& info = state.info;
    if (!assembled_)
      log_info("{} is at {} (host {}, pid {})", name.short_name(), info.address, info.host_name, info.pid);
    *message.mutable_assembled()->add_tasks() = to_proto(info);
    if (state.phase == Phase::kLost) *message.mutable_assembled()->add_lost() = to_proto(name);
    const std::string host = info.address.substr(0, info.address.rfind(':'));
    if (hosts.size() > 1 && is_loopback(host)) {
      return abort(
          fmt::format(
              "the job runs on {} hosts, but {} gave the loopback address {}, which the others can't reach; "
              "choose an interface with --interface (such as eth, or ^lo)",
              hosts.size(), info.describe(), info.address),
          name);
    }
  }
  assembled_ = true;
  broadcast(message);
}

void CoordinatorState::on_leave(SessionId id, Session& session) {
  tasks_.at(session.self.task).phase = Phase::kLeft;
  log_debug("{} left", session.self.describe());
  session.stage = Stage::kClosing;
  drop_requests_of(id);
  actions_.close(id);
  if (!missing().empty() && tasks_.at(session.self.task).expected) {
    log_warning("{} left before all tasks had joined: {} missing", session.self.describe(), join(missing()));
  }
  settle_barriers();
  check_finished();
}

void CoordinatorState::drop_requests_of(SessionId id) {
  std::erase_if(pending_, [id](const Pending& pending) { return pending.session == id; });
}

void CoordinatorState::disconnected(SessionId id, Time now) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  if (found->second.stage == Stage::kMember) {
    lose(id, found->second, "its connection closed", options_.restarts ? Return::kPossible : Return::kNever,
         now);
  }
  drop_requests_of(id);
  sessions_.erase(id);
}

void CoordinatorState::abort(const std::string& reason, std::optional<TaskName> by) {
  if (aborted_) return;
  aborted_ = {reason, std::move(by)};
  log_error("the job is aborted: {}", reason);
  pending_.clear();  // the abort answers them all
  broadcast(abort_message(*aborted_));
}

void CoordinatorState::broadcast(const proto::FromCoordinator& message) {
  for (const auto& [id, session] : sessions_) {
    if (session.stage == Stage::kMember) actions_.send(id, message);
  }
}

void CoordinatorState::tick(Time now) {
  now_ = now;
  std::vector<SessionId> silent;
  for (auto& [id, session] : sessions_) {
    if (session.stage == Stage::kMember && now - session.last_heard > options_.heartbeat_timeout)
      silent.push_back(id);
    const bool unproved = session.stage == Stage::kConnected || session.stage == Stage::kChallenged;
    if (unproved && now - session.last_heard > kHandshakeTime) {
      refuse(
          id, session,
          fmt::format("it said nothing for {} in the middle of its greeting", format_seconds(kHandshakeTime)),
          proto::Refusal::TOO_SLOW);
    }
  }
  for (const SessionId id : silent) {
    lose(id, sessions_.at(id),
         fmt::format("it was silent for longer than {}", format_seconds(options_.heartbeat_timeout)),
         Return::kNever, now);
  }

  std::vector<Pending> expired;
  for (const auto& pending : pending_) {
    if (pending.deadline && now >= *pending.deadline) expired.push_back(pending);
  }
  for (const auto& pending : expired)
    reply(pending, proto::Reply::DEADLINE_EXCEEDED, what_is_missing(pending, now));
  std::erase_if(pending_,
                [now](const Pending& pending) { return pending.deadline && now >= *pending.deadline; });

  const bool somebody_waits = std::any_of(tasks_.begin(), tasks_.end(), [](const auto& task) {
    return task.second.expected && task.second.phase == Phase::kJoined;
  });
  if (assembled_ || aborted_ || !somebody_waits || missing().empty()) return;
  if (!last_reminder_) last_reminder_ = now;
  if (now - *last_reminder_ >= kReminderInterval) {
    last_reminder_ = now;
    log_info("still waiting for {} ({})", join(missing()), joined_count());
  }
}

}  // namespace muster
