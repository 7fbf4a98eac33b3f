#include "muster/cluster/member.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/cluster/coordinator.grpc.pb.h"
#include "muster/cluster/protocol.h"
#include "muster/net/host.h"
#include "muster/net/secret.h"

namespace muster {
namespace {

using namespace std::chrono_literals;

// How long one address may take to answer a greeting before the next is tried.
constexpr auto kAttemptTime = 3s;
// The coordinator answers a request at its deadline, with what was missing; only if it is silent too, we
// speak for it.
constexpr auto kReplyGrace = 1s;

int64_t timeout_ms(Deadline deadline) {
  if (deadline.is_never()) return -1;
  return std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining()).count();
}

}  // namespace

class Member::Impl {
 public:
  Impl(Options options, Deadline deadline) : options_(std::move(options)), secret_(options_.secret) {
    quiet_grpc_log();
    join(deadline);
    pulse_ = std::thread([this] { run_pulse(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    pulse_.join();
    stream_.reset();
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::vector<TaskInfo> wait_assembled(Deadline deadline) {
    std::unique_lock lock(mutex_);
    wait(
        lock, deadline, [this] { return assembled_.has_value(); },
        [] {
          return std::string("not all tasks joined in time; the coordinator's log says which are missing");
        });
    return *assembled_;
  }

  void wait_finished(Deadline deadline) {
    std::unique_lock lock(mutex_);
    wait(
        lock, deadline, [this] { return finished_; },
        [] { return std::string("the workers did not finish in time"); });
  }

  std::string request(proto::Request request, Deadline deadline, const std::string& what) {
    std::unique_lock lock(mutex_);
    throw_if_failed();
    const uint64_t id = ++last_request_;
    request.set_id(id);
    request.set_timeout_ms(timeout_ms(deadline));
    auto& slot = replies_[id];
    proto::FromMember message;
    *message.mutable_request() = std::move(request);
    stream_->send(std::move(message));
    const Deadline patience =
        deadline.is_never() ? deadline : Deadline::after(deadline.remaining() + kReplyGrace);
    try {
      wait(
          lock, patience, [&slot] { return slot.has_value(); },
          [&] {
            return fmt::format("{}: the coordinator at {} did not answer in time", what,
                               address_.to_string());
          });
    } catch (...) {
      replies_.erase(id);
      throw;
    }
    const proto::Reply reply = std::move(*slot);
    replies_.erase(id);
    switch (reply.code()) {
      case proto::Reply::OK:
        return reply.value();
      case proto::Reply::DEADLINE_EXCEEDED:
        throw DeadlineExceeded(reply.message());
      case proto::Reply::PEER_LOST:
        throw PeerLost(reply.message());
      default:
        throw InvalidArgument(reply.message());
    }
  }

  void abort(const std::string& reason) {
    std::unique_lock lock(mutex_);
    if (failure_) return;
    proto::FromMember message;
    message.mutable_abort()->set_reason(reason);
    stream_->send(std::move(message));
    // The coordinator tells everyone, us included.
    changed_.wait_for(lock, kAttemptTime, [this] { return failure_.has_value(); });
  }

  void leave(Deadline deadline) {
    std::unique_lock lock(mutex_);
    throw_if_failed();
    leaving_ = true;
    proto::FromMember message;
    message.mutable_leave();
    stream_->send(std::move(message));
    const auto past = [this] { return stream_->done(); };
    while (!past()) {
      if (failure_) throw_if_failed();
      if (deadline.expired())
        raise<DeadlineExceeded>("the coordinator at {} did not take the leave in time", address_.to_string());
      changed_.wait_until(lock, deadline.time_point());
    }
  }

 private:
  // One attempt at a coordinator; the last successful one stays as the membership. All members but the
  // callbacks are called under the owner's lock.
  class Stream final : public grpc::ClientBidiReactor<proto::FromMember, proto::FromCoordinator> {
   public:
    Stream(Impl& owner, const Address& address) : owner_(owner) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);          // tasks of a cluster meet directly
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a fresh attempt, not another one's back-off
      arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
      channel_ =
          grpc::CreateCustomChannel(address.to_string(), grpc::InsecureChannelCredentials(), arguments);
      stub_ = proto::CoordinatorService::NewStub(channel_);
      stub_->async()->Attach(&context_, this);
      StartRead(&incoming_);
      AddHold();  // writes start from outside the reactions
      StartCall();
    }

    // Cancels and waits for gRPC to let go of this object. Not under the lock.
    ~Stream() override {
      {
        std::unique_lock lock(owner_.mutex_);
        release();
        context_.TryCancel();
        owner_.changed_.wait(lock, [this] { return done_; });
      }
    }

    void send(proto::FromMember message) {
      if (released_) return;
      queue_.push_back(std::move(message));
      if (queue_.size() == 1) StartWrite(&queue_.front());
    }

    void cancel() { context_.TryCancel(); }
    bool done() const { return done_; }
    const grpc::Status& status() const { return status_; }

    void OnReadDone(bool ok) override {
      const std::lock_guard lock(owner_.mutex_);
      if (!ok) return release();
      owner_.received(incoming_);
      StartRead(&incoming_);
    }

    void OnWriteDone(bool ok) override {
      const std::lock_guard lock(owner_.mutex_);
      queue_.pop_front();
      if (!ok) queue_.clear();
      if (!queue_.empty() && !released_) StartWrite(&queue_.front());
    }

    void OnDone(const grpc::Status& status) override {
      const std::lock_guard lock(owner_.mutex_);
      status_ = status;
      done_ = true;
      owner_.ended(status);
      owner_.changed_.notify_all();
    }

   private:
    void release() {
      if (!released_) RemoveHold();
      released_ = true;
    }

    Impl& owner_;
    std::shared_ptr<grpc::Channel> channel_;  // gRPC hands channels out shared
    std::unique_ptr<proto::CoordinatorService::Stub> stub_;
    grpc::ClientContext context_;
    proto::FromCoordinator incoming_;
    std::deque<proto::FromMember> queue_;  // the front is being written
    grpc::Status status_;
    bool released_ = false;
    bool done_ = false;
  };

  enum class Stage { kGreeting, kMember, kRefused };

  void join(Deadline deadline) {
    auto pause = 50ms;
    auto next_reminder = Deadline::after(3s);
    std::string last_error = "no address was tried";
    while (true) {
      for (const auto& candidate : options_.coordinator) {
        if (greet(candidate, deadline.earlier(Deadline::after(kAttemptTime)), last_error)) return;
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
    }
  }

  // True when welcomed. False, with the reason in `error`, when another address or a later try may do better.
  bool greet(const Address& address, Deadline deadline, std::string& error) {
    {
      const std::lock_guard lock(mutex_);
      stage_ = Stage::kGreeting;
      address_ = address;
      hello_ = make_hello();
    }
    auto stream = std::make_unique<Stream>(*this, address);
    std::unique_lock lock(mutex_);
    stream_ = std::move(stream);
    proto::FromMember message;
    *message.mutable_hello() = hello_;
    stream_->send(std::move(message));
    while (stage_ == Stage::kGreeting && !stream_->done() && !deadline.expired()) {
      changed_.wait_until(lock, deadline.time_point());
    }
    if (stage_ == Stage::kMember) return true;
    if (stage_ == Stage::kRefused) {
      error = refusal_.reason();
      if (!refusal_.other_job()) {
        const std::string reason = fmt::format("the coordinator at {} refused {}: {}", address.to_string(),
                                               options_.task.to_string(), refusal_.reason());
        discard_stream(lock);
        throw Refused(reason);
      }
    } else {
      error =
          fmt::format("{}: {}", address.to_string(),
                      stream_->done() ? stream_->status().error_message() : "it did not answer the greeting");
    }
    discard_stream(lock);
    return false;
  }

  void discard_stream(std::unique_lock<std::mutex>& lock) {
    auto stream = std::move(stream_);
    lock.unlock();
    stream.reset();
    lock.lock();
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

  // From the stream, under the lock.
  void received(const proto::FromCoordinator& message) {
    last_heard_ = Deadline::Clock::now();
    switch (message.what_case()) {
      case proto::FromCoordinator::kChallenge: {
        coordinator_nonce_ = message.challenge().nonce();
        proto::FromMember answer;
        answer.mutable_proof()->set_proof(
            secret_.prove(challenge_text("member", hello_, coordinator_nonce_)));
        stream_->send(std::move(answer));
        break;
      }
      case proto::FromCoordinator::kRefusal:
        if (stage_ == Stage::kMember) {
          fail<PeerLost>(fmt::format("{}", message.refusal().reason()));
        } else {
          refusal_ = message.refusal();
          stage_ = Stage::kRefused;
        }
        break;
      case proto::FromCoordinator::kWelcome:
        if (secret_.verify(challenge_text("coordinator", hello_, coordinator_nonce_),
                           message.welcome().proof())) {
          heartbeat_timeout_ = std::chrono::milliseconds(message.welcome().heartbeat_timeout_ms());
          stage_ = Stage::kMember;
        } else {
          refusal_.set_reason("it does not know the job's secret itself, so it is not ours");
          stage_ = Stage::kRefused;
        }
        break;
      case proto::FromCoordinator::kAssembled: {
        auto& tasks = assembled_.emplace();
        for (const auto& task : message.assembled().tasks()) tasks.push_back(from_proto(task));
        break;
      }
      case proto::FromCoordinator::kReply:
        if (const auto slot = replies_.find(message.reply().id()); slot != replies_.end())
          slot->second = message.reply();
        break;
      case proto::FromCoordinator::kAbort:
        fail<Aborted>("the job was aborted: " + message.abort().reason());
        break;
      case proto::FromCoordinator::kFinished:
        finished_ = true;
        break;
      default:
        break;
    }
    changed_.notify_all();
  }

  void ended(const grpc::Status& status) {
    if (stage_ != Stage::kMember || leaving_) return;
    fail<PeerLost>(
        fmt::format("the coordinator at {} is gone: {}", address_.to_string(),
                    status.error_message().empty() ? "it closed the connection" : status.error_message()));
  }

  template <typename E>
  void fail(std::string message) {
    if (failure_ || leaving_) return;
    failure_ = std::make_exception_ptr(E(message));
    failure_text_ = std::move(message);
    changed_.notify_all();
  }

  void throw_if_failed() const {
    if (failure_) std::rethrow_exception(*failure_);
  }

  template <typename Ready, typename Describe>
  void wait(std::unique_lock<std::mutex>& lock, Deadline deadline, Ready ready, Describe describe) {
    while (!ready()) {
      throw_if_failed();
      if (deadline.expired()) throw DeadlineExceeded(describe());
      changed_.wait_until(lock, deadline.time_point());
    }
  }

  // Sends heartbeats, watches those of the coordinator, and reports a failure once.
  void run_pulse() {
    std::unique_lock lock(mutex_);
    const auto interval = std::min<std::chrono::milliseconds>(heartbeat_timeout_ / 5, 1000ms);
    last_heard_ = Deadline::Clock::now();
    auto next = Deadline::Clock::now();
    bool reported = false;
    while (!stopping_) {
      const auto now = Deadline::Clock::now();
      if (!failure_ && !leaving_ && now >= next) {
        // Our own pause (a stopped process, a suspended machine) is not the coordinator's silence.
        if (now - next > heartbeat_timeout_ / 2) last_heard_ = now;
        if (now - last_heard_ > heartbeat_timeout_) {
          fail<PeerLost>(fmt::format("the coordinator at {} is silent since {}", address_.to_string(),
                                     format_seconds(now - last_heard_)));
        } else {
          proto::FromMember message;
          message.mutable_heartbeat();
          stream_->send(std::move(message));
        }
        next = now + interval;
      }
      if (failure_ && !reported) {
        reported = true;
        if (options_.on_failure) {
          const std::string text = failure_text_;
          lock.unlock();
          options_.on_failure(text);
          lock.lock();
        }
        continue;
      }
      if (failure_ || leaving_) {
        changed_.wait(lock, [this] { return stopping_; });
      } else {
        changed_.wait_until(lock, next, [this] { return stopping_ || failure_ || leaving_; });
      }
    }
  }

  const Options options_;
  const Secret secret_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Protected by mutex_.
  Stage stage_ = Stage::kGreeting;
  Address address_;
  proto::Hello hello_;
  std::string coordinator_nonce_;
  proto::Refusal refusal_;
  std::chrono::milliseconds heartbeat_timeout_{10000};
  Deadline::Clock::time_point last_heard_;
  std::optional<std::vector<TaskInfo>> assembled_;
  std::map<uint64_t, std::optional<proto::Reply>> replies_;
  uint64_t last_request_ = 0;
  std::optional<std::exception_ptr> failure_;
  std::string failure_text_;
  bool finished_ = false;
  bool leaving_ = false;
  bool stopping_ = false;
  std::unique_ptr<Stream> stream_;
  std::thread pulse_;
};

Member::Member(Options options, Deadline deadline)
    : impl_(std::make_unique<Impl>(std::move(options), deadline)) {}

Member::~Member() = default;

std::vector<TaskInfo> Member::wait_assembled(Deadline deadline) {
  return impl_->wait_assembled(deadline);
}

void Member::put(const std::string& key, const std::string& value, Deadline deadline) {
  proto::Request request;
  request.mutable_put()->set_key(key);
  request.mutable_put()->set_value(value);
  impl_->request(std::move(request), deadline, fmt::format("put of '{}'", key));
}

std::string Member::get(const std::string& key, Deadline deadline) {
  proto::Request request;
  request.mutable_get()->set_key(key);
  return impl_->request(std::move(request), deadline, fmt::format("get of '{}'", key));
}

void Member::barrier(const std::string& name, Deadline deadline, const std::string& job) {
  proto::Request request;
  request.mutable_barrier()->set_name(name);
  request.mutable_barrier()->set_job(job);
  impl_->request(std::move(request), deadline, fmt::format("barrier '{}'", name));
}

void Member::abort(const std::string& reason) {
  impl_->abort(reason);
}

void Member::wait_finished(Deadline deadline) {
  impl_->wait_finished(deadline);
}

void Member::leave(Deadline deadline) {
  impl_->leave(deadline);
}

}  // namespace muster
