#include "muster/cluster/member.h"

#include <unistd.h>

#include <map>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/mutex.h"
#include "muster/base/random.h"
#include "muster/cluster/coordinator_protocol.h"
#include "muster/cluster/coordinator_stream.h"
#include "muster/cluster/known_tasks.h"
#include "muster/net/host.h"
#include "muster/net/secret.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

// How long one of several addresses may be silent before the next is tried, the first time. Each time all
// have been tried it is doubled, for a coordinator that is merely slow.
constexpr auto kFirstAnswerTimeout = 3s;
// The coordinator answers a request at its deadline, with what was missing; only if it is silent too, we
// speak for it.
constexpr auto kReplyGrace = 1s;
// A wait that is longer is worth telling those who count on this task elsewhere.
constexpr auto kAwayAfter = 50ms;
// How long a member that aborts the job waits to hear it from the coordinator, which may have died.
constexpr auto kAbortEcho = 5s;

int64_t timeout_ms(Deadline deadline) {
  if (deadline.is_never()) return -1;
  return std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining()).count();
}

}  // namespace

class Member::Impl {
 public:
  Impl(Options options, Deadline deadline) : options_(std::move(options)), secret_(options_.secret) {
    enter(deadline);
    heartbeat_thread_ = std::thread([this] { run_heartbeat(); });
  }

  ~Impl() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    heartbeat_thread_.join();
    const MutexLock lock(mutex_);
    discard_stream();
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::vector<TaskInfo> wait_assembled(Deadline deadline) {
    MutexLock lock(mutex_);
    wait(
        lock, deadline,
        [this] {
          mutex_.assert_held();
          return tasks_.all().has_value();
        },
        [] {
          return std::string(
              "not all tasks entered the job in time; the coordinator's log says which are missing");
        });
    return *tasks_.all();
  }

  TaskInfo find(const TaskName& task, Deadline deadline) {
    MutexLock lock(mutex_);
    wait(
        lock, deadline,
        [&] {
          mutex_.assert_held();
          return tasks_.living(task) != nullptr;
        },
        [&] { return fmt::format("{} has failed, and did not enter again in time", task.short_name()); });
    return *tasks_.living(task);
  }

  void wait_finished(Deadline deadline) {
    MutexLock lock(mutex_);
    wait(
        lock, deadline,
        [this] {
          mutex_.assert_held();
          return finished_;
        },
        [] { return std::string("the workers did not finish in time"); });
  }

  bool has_failed(const TaskName& task) {
    const MutexLock lock(mutex_);
    return tasks_.all() && tasks_.living(task) == nullptr;
  }

  void close() {
    const MutexLock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  bool assembled() {
    const MutexLock lock(mutex_);
    return tasks_.all().has_value();
  }

  bool finished() {
    const MutexLock lock(mutex_);
    return finished_;
  }

  proto::Reply request(proto::Request request, Deadline deadline, const std::string& what,
                       const Absence* absence = nullptr) {
    MutexLock lock(mutex_);
    throw_if_ended();
    const uint64_t id = ++last_request_;
    request.set_id(id);
    request.set_timeout_ms(timeout_ms(deadline));
    PendingReply& pending = replies_[id];
    proto::FromMember message;
    *message.mutable_request() = std::move(request);
    send(std::move(message));
    const Deadline reply_deadline =
        deadline.is_never() ? deadline : Deadline::after(deadline.remaining() + kReplyGrace);
    try {
      if (absence != nullptr) wait_away(lock, id, pending, reply_deadline, *absence);
      wait(
          lock, reply_deadline, [&pending] { return pending.reply.has_value(); },
          [&] {
            mutex_.assert_held();
            return fmt::format("{}: the coordinator at {} did not answer in time", what,
                               address_.to_string());
          });
    } catch (...) {
      replies_.erase(id);
      throw;
    }
    proto::Reply reply = std::move(*pending.reply);
    replies_.erase(id);
    switch (reply.code()) {
      case proto::Reply::OK:
        return reply;
      case proto::Reply::DEADLINE_EXCEEDED:
        throw DeadlineExceeded(reply.message());
      case proto::Reply::PEER_LOST:
        throw PeerLost(reply.message());
      default:
        throw InvalidArgument(reply.message());
    }
  }

  void abort(const std::string& reason, const std::optional<TaskName>& by) {
    MutexLock lock(mutex_);
    if (error_) return;
    proto::FromMember message;
    message.mutable_abort()->set_reason(reason);
    if (by) *message.mutable_abort()->mutable_by() = to_proto(*by);
    send(std::move(message));
    // The coordinator tells everyone, us included.
    const auto deadline =
        Deadline::after(std::min<std::chrono::milliseconds>(kAbortEcho, heartbeat_timeout_));
    while (!error_ && !deadline.expired()) changed_.wait_until(lock, deadline.time_point());
  }

  void leave(Deadline deadline) {
    MutexLock lock(mutex_);
    throw_if_ended();
    leaving_ = true;
    closed_ = true;
    changed_.notify_all();
    proto::FromMember message;
    message.mutable_leave();
    send(std::move(message));
    while (!stream_ended_) {
      throw_error();
      if (deadline.expired())
        raise<DeadlineExceeded>("the coordinator at {} did not take the leave in time", address_.to_string());
      changed_.wait_until(lock, deadline.time_point());
    }
  }

 private:
  enum class Status { kHandshake, kMember, kRefused };
  struct PendingReply {
    bool granted = false;  // this task may be away
    bool returns = false;  // and is to return
    std::optional<proto::Reply> reply;
  };

  // Waits for the reply with those told who count on this task. Returns early at the deadline.
  void wait_away(MutexLock& lock, uint64_t id, PendingReply& pending, Deadline deadline,
                 const Absence& absence) MUSTER_REQUIRES(mutex_) {
    const auto patience = Deadline::after(kAwayAfter);
    bool asked = false;
    bool away = false;
    while (!pending.reply && !deadline.expired()) {
      throw_if_ended();
      if (!asked && patience.expired()) {
        asked = true;
        proto::FromMember message;
        message.mutable_away()->set_request(id);
        send(std::move(message));
      }
      if (std::exchange(pending.granted, false)) {
        away = true;
        call_unlocked(absence.away);
      } else if (std::exchange(pending.returns, false)) {
        away = false;
        call_unlocked(absence.back);
        proto::FromMember message;
        message.mutable_returned()->set_request(id);
        send(std::move(message));
      } else {
        changed_.wait_until(lock, (asked ? deadline : deadline.earlier(patience)).time_point());
      }
    }
    if (away) call_unlocked(absence.back);
  }

  void call_unlocked(const std::function<void()>& function) MUSTER_REQUIRES(mutex_) {
    std::exception_ptr error;
    mutex_.unlock();
    try {
      function();
    } catch (...) {
      error = std::current_exception();
    }
    mutex_.lock();
    if (error) std::rethrow_exception(error);
  }

  void enter(Deadline deadline) {
    auto pause = 50ms;
    std::chrono::milliseconds answer_timeout = kFirstAnswerTimeout;
    auto next_reminder = Deadline::after(3s);
    std::string last_error = "no address was tried";
    while (true) {
      for (const auto& candidate : options_.coordinator) {
        if (enter_at(candidate, answer_timeout, deadline, last_error)) return;
        if (deadline.expired()) {
          raise<DeadlineExceeded>("{} found no coordinator of job '{}' in time: {}",
                                  options_.task.to_string(), options_.job_id, last_error);
        }
      }
      if (next_reminder.expired()) {
        log_info("still looking for the coordinator at {}: {}", options_.coordinator.front().to_string(),
                 last_error);
        next_reminder = Deadline::after(3s);
      }
      std::this_thread::sleep_for(std::min<Deadline::Clock::duration>(pause, deadline.remaining()));
      pause = std::min<std::chrono::milliseconds>(pause * 2, 1000ms);
      answer_timeout = std::min<std::chrono::milliseconds>(answer_timeout * 2, 10min);
    }
  }

  // True when welcomed. False, with the reason in `error`, when another address or a later try may do better.
  bool enter_at(const Address& address, std::chrono::milliseconds answer_timeout, Deadline deadline,
                std::string& error) {
    {
      const MutexLock lock(mutex_);
      status_ = Status::kHandshake;
      stream_ended_.reset();
      coordinator_nonce_.clear();
      address_ = address;
      hello_ = make_hello();
    }
    auto stream = std::make_unique<CoordinatorStreamClient>(
        address, CoordinatorStreamClient::Handler{
                     .received = [this](const proto::FromCoordinator& message) { received(message); },
                     .ended = [this](const std::string& why) { stream_ended(why); }});
    MutexLock lock(mutex_);
    stream_ = std::move(stream);
    proto::FromMember message;
    *message.mutable_hello() = hello_;
    send(std::move(message));
    // Whoever has answered once is worth waiting for.
    const auto answer_deadline =
        options_.coordinator.size() > 1 ? Deadline::after(answer_timeout) : Deadline::never();
    while (status_ == Status::kHandshake && !stream_ended_ && !deadline.expired()) {
      if (coordinator_nonce_.empty() && answer_deadline.expired()) break;
      changed_.wait_until(
          lock, (coordinator_nonce_.empty() ? deadline.earlier(answer_deadline) : deadline).time_point());
    }
    if (status_ == Status::kMember) return true;
    std::string reason;
    if (status_ == Status::kRefused) {
      error = refusal_.reason();
      if (refusal_.kind() == proto::Refusal::FINAL) {
        reason = fmt::format("the coordinator at {} refused {}: {}", address.to_string(),
                             options_.task.to_string(), error);
      }
    } else {
      error = fmt::format("{}: {}", address.to_string(),
                          stream_ended_.value_or("it did not answer the handshake"));
    }
    discard_stream();
    if (!reason.empty()) throw Refused(reason);
    return false;
  }

  void send(proto::FromMember message) MUSTER_REQUIRES(mutex_) {
    if (stream_) stream_->send(std::move(message));
  }

  // Its handlers take our lock, so it can't end under it.
  void discard_stream() MUSTER_REQUIRES(mutex_) {
    auto stream = std::move(stream_);
    mutex_.unlock();
    stream.reset();
    mutex_.lock();
  }

  proto::Hello make_hello() const {
    const Host host = Host::local();
    proto::Hello hello;
    hello.set_protocol(kProtocolVersion);
    hello.set_job_id(options_.job_id);
    hello.set_nonce(random_bytes(16));
    hello.set_observer(options_.observer);
    *hello.mutable_self() = to_proto(TaskInfo{.task = options_.task,
                                              .address = options_.address,
                                              .host_name = host.name,
                                              .host_identity = host.identity,
                                              .pid = getpid(),
                                              .incarnation = options_.incarnation});
    for (const auto& [job, indices] : options_.tasks) {
      for (const int index : indices) *hello.add_tasks() = to_proto(TaskName::of(job, index));
    }
    return hello;
  }

  void received(const proto::FromCoordinator& message) {
    const MutexLock lock(mutex_);
    last_heard_ = Deadline::Clock::now();
    switch (message.what_case()) {
      case proto::FromCoordinator::kChallenge: {
        coordinator_nonce_ = message.challenge().nonce();
        proto::FromMember answer;
        answer.mutable_proof()->set_proof(
            secret_.prove(challenge_text("member", hello_, coordinator_nonce_)));
        send(std::move(answer));
        break;
      }
      case proto::FromCoordinator::kRefusal:
        if (status_ == Status::kMember) {
          end<PeerLost>(fmt::format("{}", message.refusal().reason()));
        } else {
          refusal_ = message.refusal();
          status_ = Status::kRefused;
        }
        break;
      case proto::FromCoordinator::kWelcome:
        if (secret_.verify(challenge_text("coordinator", hello_, coordinator_nonce_),
                           message.welcome().proof())) {
          heartbeat_timeout_ = std::chrono::milliseconds(message.welcome().heartbeat_timeout_ms());
          status_ = Status::kMember;
          proto::FromMember first_message;  // with it we have entered
          first_message.mutable_heartbeat();
          send(std::move(first_message));
        } else {
          refusal_.set_reason("it does not know the job's secret itself, so it is not ours");
          status_ = Status::kRefused;
        }
        break;
      case proto::FromCoordinator::kHeartbeat:
        look_ = message.heartbeat().look();
        break;
      case proto::FromCoordinator::kAssembled:
        tasks_.update(message.assembled());
        break;
      case proto::FromCoordinator::kTaskFailed:
        tasks_.update(message.task_failed());
        break;
      case proto::FromCoordinator::kReply:
        if (const auto pending = replies_.find(message.reply().id()); pending != replies_.end())
          pending->second.reply = message.reply();
        break;
      case proto::FromCoordinator::kAwayGranted:
        if (const auto pending = replies_.find(message.away_granted().request()); pending != replies_.end())
          pending->second.granted = true;
        break;
      case proto::FromCoordinator::kReturnNow:
        if (const auto pending = replies_.find(message.return_now().request()); pending != replies_.end())
          pending->second.returns = true;
        break;
      case proto::FromCoordinator::kAbort:
        if (!error_) {
          if (message.abort().has_by()) ended_.by = from_proto(message.abort().by());
          ended_.died = message.abort().died();
          ended_.said = message.abort().said();
          ended_.aborted = true;
        }
        end<Aborted>("the job was aborted: " + message.abort().reason());
        break;
      case proto::FromCoordinator::kFinished:
        finished_ = true;
        break;
      default:
        break;
    }
    changed_.notify_all();
  }

  void stream_ended(const std::string& why) {
    const MutexLock lock(mutex_);
    stream_ended_ = why;
    if (status_ == Status::kMember) {
      end<PeerLost>(fmt::format("the coordinator at {} is gone: {}", address_.to_string(), why));
    }
    changed_.notify_all();
  }

  template <typename E>
  void end(std::string message) MUSTER_REQUIRES(mutex_) {
    if (error_ || leaving_) return;
    error_ = [message] { throw E(message); };
    ended_.reason = std::move(message);
    changed_.notify_all();
  }

  void throw_error() const MUSTER_REQUIRES(mutex_) {
    if (error_) error_();
  }

  void throw_if_ended() const MUSTER_REQUIRES(mutex_) {
    throw_error();
    if (closed_) raise<Aborted>("{} has left the job", options_.task.short_name());
  }

  template <typename Ready, typename Describe>
  void wait(MutexLock& lock, Deadline deadline, Ready ready, Describe describe) MUSTER_REQUIRES(mutex_) {
    while (!ready()) {
      throw_if_ended();
      if (deadline.expired()) throw DeadlineExceeded(describe());
      changed_.wait_until(lock, deadline.time_point());
    }
  }

  proto::Heartbeat make_heartbeat() const MUSTER_REQUIRES(mutex_) {
    proto::Heartbeat heartbeat;
    heartbeat.set_look(look_);
    if (options_.waits == nullptr) return heartbeat;
    for (const auto& wait : options_.waits->waits()) *heartbeat.add_waits() = to_proto(wait);
    heartbeat.set_doing(options_.waits->doing());
    return heartbeat;
  }

  // Sends heartbeats, watches those of the coordinator, and reports tasks that have failed, and once the
  // end of the membership.
  void run_heartbeat() {
    MutexLock lock(mutex_);
    const auto interval = std::min<std::chrono::milliseconds>(heartbeat_timeout_ / 5, 1000ms);
    last_heard_ = Deadline::Clock::now();
    auto next = Deadline::Clock::now();
    bool reported = false;
    while (!stopping_) {
      const auto now = Deadline::Clock::now();
      if (!error_ && !leaving_ && now >= next) {
        // Our own pause (a stopped process, a suspended machine) is not the coordinator's silence.
        if (now - next > heartbeat_timeout_ / 2) last_heard_ = now;
        if (now - last_heard_ > heartbeat_timeout_) {
          end<PeerLost>(fmt::format("the coordinator at {} is silent since {}", address_.to_string(),
                                    format_seconds(now - last_heard_)));
        } else {
          proto::FromMember message;
          *message.mutable_heartbeat() = make_heartbeat();
          send(std::move(message));
        }
        next = now + interval;
      }
      if (tasks_.has_failures() && !leaving_) {
        report_failures();
        continue;
      }
      if (error_ && !reported) {
        reported = true;
        if (options_.on_ended) {
          const Ended ended = ended_;
          lock.unlock();
          options_.on_ended(ended);
          lock.lock();
        }
        continue;
      }
      if (error_ || leaving_) {
        while (!stopping_) changed_.wait(lock);
      } else {
        while (!stopping_ && !error_ && !leaving_ && !tasks_.has_failures()) {
          if (changed_.wait_until(lock, next) == std::cv_status::timeout) break;
        }
      }
    }
  }

  void report_failures() MUSTER_REQUIRES(mutex_) {
    const auto failed = tasks_.take_failures();
    if (!options_.on_task_failed) return;
    mutex_.unlock();
    for (const auto& task : failed) options_.on_task_failed(task);
    mutex_.lock();
  }

  const Options options_;
  const Secret secret_;
  Mutex mutex_;
  ConditionVariable changed_;
  Status status_ MUSTER_GUARDED_BY(mutex_) = Status::kHandshake;
  Address address_ MUSTER_GUARDED_BY(mutex_);
  proto::Hello hello_ MUSTER_GUARDED_BY(mutex_);
  std::string coordinator_nonce_ MUSTER_GUARDED_BY(mutex_);
  proto::Refusal refusal_ MUSTER_GUARDED_BY(mutex_);
  std::chrono::milliseconds heartbeat_timeout_ MUSTER_GUARDED_BY(mutex_){10000};
  Deadline::Clock::time_point last_heard_ MUSTER_GUARDED_BY(mutex_);
  uint64_t look_ MUSTER_GUARDED_BY(mutex_) = 0;  // the coordinator's last at all waits, as it says
  KnownTasks tasks_ MUSTER_GUARDED_BY(mutex_);
  std::map<uint64_t, PendingReply> replies_ MUSTER_GUARDED_BY(mutex_);
  uint64_t last_request_ MUSTER_GUARDED_BY(mutex_) = 0;
  // Throws what ended the membership: to each caller an exception of its own, since they may be on any thread.
  std::function<void()> error_ MUSTER_GUARDED_BY(mutex_);
  Ended ended_ MUSTER_GUARDED_BY(mutex_);  // the same, for the callback
  bool finished_ MUSTER_GUARDED_BY(mutex_) = false;
  bool leaving_ MUSTER_GUARDED_BY(mutex_) = false;
  bool closed_ MUSTER_GUARDED_BY(mutex_) = false;  // for calls
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  std::optional<std::string> stream_ended_ MUSTER_GUARDED_BY(mutex_);  // why the stream is no more
  std::unique_ptr<CoordinatorStreamClient> stream_ MUSTER_GUARDED_BY(mutex_);
  std::thread heartbeat_thread_;
};

Member::Member(Options options, Deadline deadline)
    : impl_(std::make_unique<Impl>(std::move(options), deadline)) {}

Member::~Member() = default;

std::vector<TaskInfo> Member::wait_assembled(Deadline deadline) {
  return impl_->wait_assembled(deadline);
}

TaskInfo Member::find(const TaskName& task, Deadline deadline) {
  return impl_->find(task, deadline);
}

bool Member::has_failed(const TaskName& task) const {
  return impl_->has_failed(task);
}

void Member::close() {
  impl_->close();
}

void Member::put(const std::string& key, const std::string& value, Deadline deadline) {
  proto::Request request;
  request.mutable_put()->set_key(key);
  request.mutable_put()->set_value(value);
  impl_->request(std::move(request), deadline, fmt::format("put of '{}'", key));
}

std::string Member::get(const std::string& key, Deadline deadline, const Absence* absence) {
  proto::Request request;
  request.mutable_get()->set_key(key);
  return impl_->request(std::move(request), deadline, fmt::format("get of '{}'", key), absence).value();
}

void Member::barrier(const std::string& name, Deadline deadline, const std::string& job) {
  gather(name, "", deadline, job);
}

std::vector<std::string> Member::gather(const std::string& name, const std::string& value, Deadline deadline,
                                        const std::string& job, const Absence* absence) {
  proto::Request request;
  request.mutable_barrier()->set_name(name);
  request.mutable_barrier()->set_job(job);
  request.mutable_barrier()->set_value(value);
  const auto reply = impl_->request(std::move(request), deadline, fmt::format("barrier '{}'", name), absence);
  return {reply.values().begin(), reply.values().end()};
}

void Member::abort(const std::string& reason, const std::optional<TaskName>& by) {
  impl_->abort(reason, by);
}

bool Member::assembled() const {
  return impl_->assembled();
}

void Member::wait_finished(Deadline deadline) {
  impl_->wait_finished(deadline);
}

bool Member::finished() const {
  return impl_->finished();
}

void Member::exited(const TaskName& task, const std::string& how, Deadline deadline) {
  proto::Request request;
  *request.mutable_exited()->mutable_task() = to_proto(task);
  request.mutable_exited()->set_how(how);
  impl_->request(std::move(request), deadline, fmt::format("the end of {}", task.short_name()));
}

void Member::leave(Deadline deadline) {
  impl_->leave(deadline);
}

}  // namespace muster::detail
