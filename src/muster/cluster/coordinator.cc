#include "muster/cluster/coordinator.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/cluster/coordinator.grpc.pb.h"
#include "muster/cluster/coordinator_state.h"
#include "muster/cluster/protocol.h"

namespace muster {
namespace {

// A client that reads nothing while this much waits for it is as good as dead.
constexpr size_t kMaxQueuedBytes = 256 << 20;
constexpr auto kTick = std::chrono::milliseconds(50);

}  // namespace

class Coordinator::Impl final : public proto::CoordinatorService::CallbackService {
 public:
  explicit Impl(Options options)
      : state_(
            {.job_id = options.job_id,
             .secret = options.secret,
             .tasks = options.tasks,
             .heartbeat_timeout = options.heartbeat_timeout,
             .loss_policy = options.loss_policy},
            {.send = [this](SessionId id, proto::FromCoordinator message) { send(id, std::move(message)); },
             .close = [this](SessionId id) { close(id); }}) {
    quiet_grpc_log();
    listen(options.listen);
    ticker_ = std::thread([this] { run_ticker(); });
  }

  ~Impl() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    ticker_.join();
    server_->Shutdown(std::chrono::system_clock::now());
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return streams_.empty(); });
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const Address& address() const { return address_; }

  template <typename Function>
  auto with_state(Function function) {
    const std::lock_guard lock(mutex_);
    return function(state_);
  }

  bool wait_idle(Deadline deadline) {
    std::unique_lock lock(mutex_);
    auto next_reminder = Deadline::after(std::chrono::seconds(3));
    while (!state_.idle()) {
      if (deadline.expired()) return false;
      if (next_reminder.expired()) {
        log_info("still waiting for {} to finish", fmt::join(state_.present(), ", "));
        next_reminder = Deadline::after(std::chrono::seconds(3));
      }
      changed_.wait_until(lock, deadline.earlier(next_reminder).time_point());
    }
    return true;
  }

 private:
  using SessionId = CoordinatorState::SessionId;

  // One client's stream. gRPC calls the On... functions one at a time for each kind; OnDone is the last.
  class Stream final : public grpc::ServerBidiReactor<proto::FromMember, proto::FromCoordinator> {
   public:
    Stream(Impl& owner, SessionId id, grpc::CallbackServerContext* context)
        : owner_(owner), id_(id), context_(context) {}

    void start() { StartRead(&incoming_); }

    // The rest is called under the owner's lock.
    void send(proto::FromCoordinator message) {
      queued_bytes_ += message.ByteSizeLong();
      queue_.push_back(std::move(message));
      if (queued_bytes_ > kMaxQueuedBytes) {
        context_->TryCancel();
      } else if (queue_.size() == 1) {
        StartWrite(&queue_.front());
      }
    }

    void close() {
      closing_ = true;
      finish_when_drained();
    }

    void OnReadDone(bool ok) override {
      const std::lock_guard lock(owner_.mutex_);
      if (!ok) {
        closing_ = true;
        return finish_when_drained();
      }
      owner_.state_.received(id_, incoming_, Deadline::Clock::now());
      owner_.changed_.notify_all();
      StartRead(&incoming_);
    }

    void OnWriteDone(bool ok) override {
      const std::lock_guard lock(owner_.mutex_);
      queued_bytes_ -= queue_.front().ByteSizeLong();
      queue_.pop_front();
      if (!ok) queue_.clear();
      if (!queue_.empty()) {
        StartWrite(&queue_.front());
      } else if (closing_) {
        finish_when_drained();
      }
    }

    void OnCancel() override {
      const std::lock_guard lock(owner_.mutex_);
      owner_.state_.disconnected(id_, Deadline::Clock::now());
      owner_.changed_.notify_all();
      closing_ = true;
      finish_when_drained();
    }

    void OnDone() override {
      std::unique_ptr<Stream> self;  // ends with this function
      const std::lock_guard lock(owner_.mutex_);
      owner_.state_.disconnected(id_, Deadline::Clock::now());
      const auto found = owner_.streams_.find(id_);
      self = std::move(found->second);
      owner_.streams_.erase(found);
      owner_.changed_.notify_all();
    }

   private:
    void finish_when_drained() {
      if (finished_ || !queue_.empty()) return;
      finished_ = true;
      Finish(grpc::Status::OK);
    }

    Impl& owner_;
    const SessionId id_;
    grpc::CallbackServerContext* const context_;  // gRPC's, alive until OnDone
    proto::FromMember incoming_;
    std::deque<proto::FromCoordinator> queue_;  // the front is being written
    size_t queued_bytes_ = 0;
    bool closing_ = false;
    bool finished_ = false;
  };

  grpc::ServerBidiReactor<proto::FromMember, proto::FromCoordinator>* Attach(
      grpc::CallbackServerContext* context) override {
    const std::lock_guard lock(mutex_);
    const SessionId id = ++last_session_;
    auto stream = std::make_unique<Stream>(*this, id, context);
    Stream* borrowed = stream.get();  // gRPC's until OnDone
    streams_.emplace(id, std::move(stream));
    state_.connected(id, context->peer(), Deadline::Clock::now());
    borrowed->start();
    return borrowed;
  }

  void send(SessionId id, proto::FromCoordinator message) {
    if (const auto found = streams_.find(id); found != streams_.end())
      found->second->send(std::move(message));
  }

  void close(SessionId id) {
    if (const auto found = streams_.find(id); found != streams_.end()) found->second->close();
  }

  void listen(const std::vector<Address>& candidates) {
    std::string tried;
    for (const auto& candidate : candidates) {
      grpc::ServerBuilder builder;
      int port = 0;
      // Without this, gRPC would let two coordinators share a port, and tasks would meet either.
      builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
      // A connection that says nothing is dropped after this long.
      builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5000);
      builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
      builder.AddListeningPort(candidate.to_string(), grpc::InsecureServerCredentials(), &port);
      builder.RegisterService(this);
      server_ = builder.BuildAndStart();
      if (server_ && port != 0) {
        address_ = {candidate.host, port};
        return;
      }
      tried += (tried.empty() ? "" : ", ") + candidate.to_string();
    }
    raise<SystemError>(
        "the coordinator can't listen on {}: the port is taken, or the address is not one of this host",
        tried);
  }

  void run_ticker() {
    const ScopedLogTask task("coordinator");
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      state_.tick(Deadline::Clock::now());
      changed_.wait_for(lock, kTick);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  // Protected by mutex_.
  CoordinatorState state_;
  std::map<SessionId, std::unique_ptr<Stream>> streams_;
  SessionId last_session_ = 0;
  bool stopping_ = false;
  // Constant after construction.
  Address address_;
  std::unique_ptr<grpc::Server> server_;
  std::thread ticker_;
};

Coordinator::Coordinator(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}

Coordinator::~Coordinator() = default;

const Address& Coordinator::address() const {
  return impl_->address();
}

void Coordinator::abort(const std::string& reason, std::optional<TaskName> by) {
  impl_->with_state([&](CoordinatorState& state) { state.abort(reason, std::move(by)); });
}

void Coordinator::exited(const TaskName& task, const std::string& how) {
  impl_->with_state([&](CoordinatorState& state) { state.exited(task, how); });
}

std::optional<Coordinator::AbortRecord> Coordinator::aborted() const {
  return impl_->with_state([](CoordinatorState& state) { return state.aborted(); });
}

bool Coordinator::wait_idle(Deadline deadline) {
  return impl_->wait_idle(deadline);
}

}  // namespace muster
