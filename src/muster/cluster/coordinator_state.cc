#include "muster/cluster/coordinator_state.h"

#include <algorithm>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/cluster/coordinator_protocol.h"

namespace muster::detail {
namespace {

// Whoever says nothing for so long before it has proved the secret is told to begin the handshake again, so
// that silent strangers do not pile up. A task of ours that is merely slow does so, until its own deadline.
constexpr auto kHandshakeTimeout = std::chrono::seconds(15);
constexpr auto kReminderInterval = std::chrono::seconds(3);

std::string comma_separated(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

proto::FromCoordinator abort_message(const CoordinatorState::AbortRecord& record) {
  proto::FromCoordinator message;
  message.mutable_abort()->set_reason(record.reason);
  if (record.by) *message.mutable_abort()->mutable_by() = to_proto(*record.by);
  message.mutable_abort()->set_died(record.died);
  message.mutable_abort()->set_said(record.said);
  return message;
}

}  // namespace

CoordinatorState::CoordinatorState(Options options, Actions actions)
    : options_(std::move(options)),
      secret_(options_.secret),
      actions_(std::move(actions)),
      wait_watch_(options_.waits) {
  for (const auto& [job, indices] : options_.tasks) {
    for (const int index : indices) tasks_[TaskName::of(job, index)].expected = true;
  }
}

void CoordinatorState::connected(StreamId stream, std::string peer, Time now) {
  streams_[stream] = {.peer = std::move(peer), .last_heard = now};
}

void CoordinatorState::received(StreamId id, const proto::FromMember& message, Time now) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  now_ = now;
  Stream& stream = found->second;
  stream.last_heard = now;
  if (stream.status == StreamStatus::kClosing) return;
  if (stream.status == StreamStatus::kConnected) {
    if (message.has_hello()) return on_hello(id, stream, message.hello());
    return refuse(id, stream, "the first message of the handshake was not a Hello");
  }
  if (stream.status == StreamStatus::kChallenged) {
    if (message.has_proof()) return on_proof(id, stream, message.proof());
    return refuse(id, stream, "the challenge was not answered");
  }
  if (stream.status == StreamStatus::kWelcomed) {
    if (const auto reason = reason_to_refuse(stream)) return refuse(id, stream, *reason);
    admit(id, stream);
  }
  switch (message.what_case()) {
    case proto::FromMember::kHeartbeat: {
      wait_watch_.heard(stream.self.task.short_name(), message.heartbeat());
      proto::FromCoordinator answer;
      answer.mutable_heartbeat()->set_look(wait_watch_.looks());
      return actions_.send(id, std::move(answer));
    }
    case proto::FromMember::kRequest:
      return on_request(id, message.request(), now);
    case proto::FromMember::kAbort:
      return on_abort(stream, message.abort());
    case proto::FromMember::kAway:
      return on_away(id, message.away().request());
    case proto::FromMember::kReturned:
      return on_returned(id, message.returned().request());
    case proto::FromMember::kLeave:
      return on_leave(id, stream);
    default:
      return refuse(id, stream, "a message that members do not send");
  }
}

void CoordinatorState::on_hello(StreamId id, Stream& stream, const proto::Hello& hello) {
  stream.hello = hello;
  stream.self = from_proto(hello.self());
  if (hello.protocol() != kProtocolVersion) {
    return refuse(
        id, stream,
        fmt::format("it speaks version {} of the protocol, and the coordinator version {}: use the same "
                    "build of Muster for all tasks",
                    hello.protocol(), kProtocolVersion));
  }
  if (hello.job_id() != options_.job_id) {
    return refuse(
        id, stream,
        fmt::format("it belongs to job '{}', and this is job '{}'", hello.job_id(), options_.job_id),
        proto::Refusal::OTHER_JOB);
  }
  stream.server_nonce = random_bytes(16);
  stream.status = StreamStatus::kChallenged;
  proto::FromCoordinator message;
  message.mutable_challenge()->set_nonce(stream.server_nonce);
  actions_.send(id, std::move(message));
}

std::string CoordinatorState::challenge_of(const Stream& stream, const char* role) const {
  return challenge_text(role, stream.hello, stream.server_nonce);
}

std::optional<std::string> CoordinatorState::reason_to_refuse(const Stream& stream) const {
  const auto& name = stream.self.task;
  if (aborted_) return "the job was aborted: " + aborted_->reason;
  const auto found = tasks_.find(name);
  if (!stream.hello.observer()) {
    if (found == tasks_.end() || !found->second.expected) {
      std::vector<std::string> expected;
      for (const auto& [task, state] : tasks_) {
        if (state.expected) expected.push_back(task.to_string());
      }
      return fmt::format("the job has no task {}; it has {}", name.to_string(), comma_separated(expected));
    }
    TaskSet believed;
    for (const auto& task : stream.hello.tasks()) believed[task.job()].push_back(task.index());
    for (auto& [job, indices] : believed) std::sort(indices.begin(), indices.end());
    if (believed != options_.tasks) {
      const auto describe = [](const TaskSet& tasks) {
        std::vector<std::string> words;
        for (const auto& [job, indices] : tasks) words.push_back(fmt::format("{} {}", indices.size(), job));
        return comma_separated(words);
      };
      return fmt::format("it was told of a cluster of {}, and this job has {}", describe(believed),
                         describe(options_.tasks));
    }
  }
  if (found == tasks_.end()) return std::nullopt;
  const TaskState& state = found->second;
  if (state.status == TaskStatus::kEntered && stream.self.incarnation <= state.info.incarnation) {
    return fmt::format("{} has already entered the job, as pid {} on host {}", name.to_string(),
                       state.info.pid, state.info.host_name);
  }
  if (state.status == TaskStatus::kLeft) return fmt::format("{} has already finished", name.to_string());
  return std::nullopt;
}

void CoordinatorState::on_proof(StreamId id, Stream& stream, const proto::Proof& proof) {
  if (!secret_.verify(challenge_of(stream, "member"), proof.proof())) {
    return refuse(id, stream, "it does not know the job's secret (MUSTER_SECRET)");
  }
  if (const auto reason = reason_to_refuse(stream)) return refuse(id, stream, *reason);
  stream.status = StreamStatus::kWelcomed;
  stream.proved = true;
  proto::FromCoordinator welcome;
  welcome.mutable_welcome()->set_proof(secret_.prove(challenge_of(stream, "coordinator")));
  welcome.mutable_welcome()->set_heartbeat_timeout_ms(options_.heartbeat_timeout.count());
  actions_.send(id, std::move(welcome));
}

void CoordinatorState::admit(StreamId id, Stream& stream) {
  TaskState& state = tasks_[stream.self.task];
  if (state.status == TaskStatus::kEntered) {  // an earlier incarnation whose end has not been noticed yet
    const StreamId old = state.stream;
    drop_requests_of(old);
    streams_.at(old).status = StreamStatus::kClosing;
    actions_.close(old);
    tell_of_failure(state.info);
  }
  const bool again = state.status != TaskStatus::kAbsent;
  for (auto& [name, arrivals] : arrivals_) arrivals.erase(stream.self.task);
  state.status = TaskStatus::kEntered;
  state.stream = id;
  state.info = stream.self;
  state.ended.clear();
  stream.status = StreamStatus::kMember;
  wait_watch_.forget(stream.self.task.short_name());
  if (again) {
    log_warning("{} entered again as incarnation {}", stream.self.describe(), stream.self.incarnation);
  } else {
    log_debug("{} entered{}", stream.self.describe(),
              state.expected ? fmt::format(" ({})", entered_count()) : "");
  }
  if (state.expected) abort_if_a_task_never_enters();
  if (state.expected || assembled_) check_assembled();
  if (finished_) {
    proto::FromCoordinator message;
    message.mutable_finished();
    actions_.send(id, std::move(message));
  }
}

void CoordinatorState::refuse(StreamId id, Stream& stream, const std::string& reason,
                              proto::Refusal::Kind kind) {
  const auto& self = stream.self;
  const std::string who = self.task.job && !self.task.job->empty() ? self.describe() : "a stranger";
  // Whoever comes after an abort is a launcher that begins again, or is told by its refusal.
  if (!aborted_ && refusals_.allows(now_))
    log_warning("refused {} at {}: {}{}", who, stream.peer, reason, refusals_.left_out());
  send_refusal_and_close(id, stream, reason, kind);
}

void CoordinatorState::send_refusal_and_close(StreamId id, Stream& stream, const std::string& reason,
                                              proto::Refusal::Kind kind) {
  stream.status = StreamStatus::kClosing;
  proto::FromCoordinator message;
  message.mutable_refusal()->set_reason(reason);
  message.mutable_refusal()->set_kind(kind);
  actions_.send(id, std::move(message));
  actions_.close(id);
}

bool CoordinatorState::idle() const {
  return std::ranges::none_of(streams_, [](const auto& entry) { return entry.second.proved; });
}

std::vector<std::string> CoordinatorState::missing() const {
  std::vector<std::string> names;
  for (const auto& [name, state] : tasks_) {
    if (state.expected && state.status == TaskStatus::kAbsent) names.push_back(name.to_string());
  }
  return names;
}

std::vector<std::string> CoordinatorState::present() const {
  std::vector<std::string> names;
  for (const auto& [name, state] : tasks_) {
    if (state.status == TaskStatus::kEntered) names.push_back(name.to_string());
  }
  return names;
}

std::string CoordinatorState::entered_count() const {
  const auto expected =
      std::count_if(tasks_.begin(), tasks_.end(), [](const auto& task) { return task.second.expected; });
  return fmt::format("{} of {} tasks entered", expected - static_cast<long>(missing().size()), expected);
}

void CoordinatorState::check_assembled() {
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
    if (state.status == TaskStatus::kFailed) *message.mutable_assembled()->add_failed() = to_proto(name);
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

// Before all are there, the ones to blame are often those who are not.
void CoordinatorState::on_abort(const Stream& stream, const proto::Abort& message) {
  if (stream.self.task.job == "launcher" && message.has_by())
    return abort(message.reason(), from_proto(message.by()));
  std::string reason = fmt::format("{}: {}", stream.self.describe(), message.reason());
  if (!assembled_ && !missing().empty())
    reason += fmt::format("; not there yet: {}", comma_separated(missing()));
  abort({.reason = std::move(reason), .by = stream.self.task, .said = true});
}

void CoordinatorState::on_leave(StreamId id, Stream& stream) {
  tasks_.at(stream.self.task).status = TaskStatus::kLeft;
  log_debug("{} left", stream.self.describe());
  stream.status = StreamStatus::kClosing;
  drop_requests_of(id);
  actions_.close(id);
  if (!missing().empty() && tasks_.at(stream.self.task).expected) {
    log_warning("{} left before all tasks had entered: {} missing", stream.self.describe(),
                comma_separated(missing()));
  }
  settle_barriers();
  check_finished();
}

void CoordinatorState::drop_requests_of(StreamId id) {
  std::erase_if(pending_, [id](const Pending& pending) { return pending.stream == id; });
  on_returned(id, std::nullopt);
}

void CoordinatorState::disconnected(StreamId id, Time now) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  if (found->second.status == StreamStatus::kMember) {
    fail(id, found->second, {.how = "its connection closed", .may_return = options_.restarts, .died = true},
         now);
  }
  drop_requests_of(id);
  streams_.erase(id);
}

void CoordinatorState::abort(const std::string& reason, std::optional<TaskName> by) {
  abort(AbortRecord{.reason = reason, .by = std::move(by)});
}

void CoordinatorState::abort(AbortRecord record) {
  if (aborted_) return;
  aborted_ = std::move(record);
  log_at(options_.logs_aborts && !aborted_->said ? LogLevel::kError : LogLevel::kDebug,
         "the job is aborted: {}", aborted_->reason);
  pending_.clear();  // the abort answers them all
  releases_.clear();
  broadcast(abort_message(*aborted_));
}

void CoordinatorState::broadcast(const proto::FromCoordinator& message) {
  for (const auto& [id, stream] : streams_) {
    if (stream.status == StreamStatus::kMember) actions_.send(id, message);
  }
}

void CoordinatorState::tick(Time now) {
  now_ = now;
  // Our own pause (a stopped process, a suspended machine) is not the others' silence: what they said
  // meanwhile is still to be read.
  if (last_tick_ && now - *last_tick_ > options_.heartbeat_timeout / 2) {
    for (auto& [id, stream] : streams_) stream.last_heard = now;
  }
  last_tick_ = now;
  std::vector<StreamId> silent;
  for (auto& [id, stream] : streams_) {
    if (stream.status == StreamStatus::kMember && now - stream.last_heard > options_.heartbeat_timeout)
      silent.push_back(id);
    const bool unproved =
        stream.status == StreamStatus::kConnected || stream.status == StreamStatus::kChallenged;
    if (unproved && now - stream.last_heard > kHandshakeTimeout) {
      refuse(id, stream,
             fmt::format("it said nothing for {} in the middle of the handshake",
                         format_seconds(kHandshakeTimeout)),
             proto::Refusal::TOO_SLOW);
    }
  }
  for (const StreamId id : silent) {
    fail(id, streams_.at(id),
         {.how = fmt::format("it was silent for longer than {}", format_seconds(options_.heartbeat_timeout))},
         now);
  }

  std::vector<Pending> expired;
  for (const auto& pending : pending_) {
    if (pending.deadline && now >= *pending.deadline) expired.push_back(pending);
  }
  for (const auto& pending : expired) {
    reply(pending, proto::Reply::DEADLINE_EXCEEDED, what_is_missing(pending, now));
    // It has not been there: it may come again.
    if (pending.request.has_barrier())
      --arrivals_[pending.request.barrier().name()][streams_.at(pending.stream).self.task];
  }
  std::erase_if(pending_,
                [now](const Pending& pending) { return pending.deadline && now >= *pending.deadline; });

  watch_waits(now);
  const bool somebody_waits = std::any_of(tasks_.begin(), tasks_.end(), [](const auto& task) {
    return task.second.expected && task.second.status == TaskStatus::kEntered;
  });
  if (assembled_ || aborted_ || !somebody_waits || missing().empty()) return;
  if (!last_reminder_) last_reminder_ = now;
  if (now - *last_reminder_ >= kReminderInterval) {
    last_reminder_ = now;
    log_info("still waiting for {} ({})", comma_separated(missing()), entered_count());
  }
}

}  // namespace muster::detail
