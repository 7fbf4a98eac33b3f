#include "muster/cluster/control_stream.h"

#include <deque>
#include <map>
#include <mutex>

#include <fmt/format.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/mutex.h"
#include "muster/cluster/coordinator.grpc.pb.h"

namespace muster::detail {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;
// A client that reads nothing while this much waits for it is as good as dead.
constexpr size_t kMaxQueuedBytes = 256 << 20;
// A connection that says nothing is dropped after this long. A task that was merely slow connects again.
constexpr int kHandshakeMilliseconds = 60000;

// gRPC's own lines go to our log, at debug level.
void quiet_grpc_log() {
  static std::once_flag once;
  std::call_once(once, [] {
    gpr_set_log_function(
        [](gpr_log_func_args* line) { log_debug("grpc {}:{}: {}", line->file, line->line, line->message); });
  });
}

}  // namespace

class ControlStreamServer::Impl final : public proto::CoordinatorService::CallbackService {
 public:
  Impl(const std::vector<Address>& candidates, Handler handler) : handler_(std::move(handler)) {
    quiet_grpc_log();
    listen(candidates);
  }

  ~Impl() override { shutdown(); }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void shutdown() {
    server_->Shutdown(std::chrono::system_clock::now());
    MutexLock lock(mutex_);
    while (alive_ > 0) changed_.wait(lock);
  }

  const Address& address() const { return address_; }

  template <typename Function>
  void with_stream(Id id, Function function) {
    const MutexLock lock(mutex_);
    if (const auto found = streams_.find(id); found != streams_.end()) function(*found->second);
  }

 private:
  friend class ControlStreamServer;

  // gRPC calls the On... functions of one kind one at a time; OnDone is the last.
  class Stream final : public grpc::ServerBidiReactor<proto::FromMember, proto::FromCoordinator> {
   public:
    Stream(Impl& owner, Id id, grpc::CallbackServerContext* context)
        : owner_(owner), id_(id), context_(context) {}

    void start() { StartRead(&incoming_); }

    // For callers that hold the owner's lock where the analysis can't see it.
    void assert_locked() const MUSTER_ASSERT_HELD(owner_.mutex_) {}

    void send(proto::FromCoordinator message) MUSTER_REQUIRES(owner_.mutex_) {
      if (closing_) return;
      queued_bytes_ += message.ByteSizeLong();
      queue_.push_back(std::move(message));
      if (queued_bytes_ > kMaxQueuedBytes) {
        context_->TryCancel();
      } else if (queue_.size() == 1) {
        StartWrite(&queue_.front());
      }
    }

    void close() MUSTER_REQUIRES(owner_.mutex_) {
      closing_ = true;
      if (finished_ || !queue_.empty()) return;
      finished_ = true;
      Finish(grpc::Status::OK);
    }

    void OnReadDone(bool ok) override {
      if (ok) {
        owner_.handler_.received(id_, incoming_);
        StartRead(&incoming_);
      } else {
        const MutexLock lock(owner_.mutex_);
        close();
      }
    }

    void OnWriteDone(bool ok) override {
      const MutexLock lock(owner_.mutex_);
      queued_bytes_ -= queue_.front().ByteSizeLong();
      queue_.pop_front();
      if (!ok) queue_.clear();
      if (!queue_.empty()) {
        StartWrite(&queue_.front());
      } else if (closing_) {
        close();
      }
    }

    void OnCancel() override {
      const MutexLock lock(owner_.mutex_);
      close();
    }

    void OnDone() override {
      std::unique_ptr<Stream> self;  // ends with this function
      {
        const MutexLock lock(owner_.mutex_);
        self = std::move(owner_.streams_.extract(id_).mapped());
      }
      owner_.handler_.disconnected(id_);
      const MutexLock lock(owner_.mutex_);
      --owner_.alive_;
      owner_.changed_.notify_all();
    }

   private:
    Impl& owner_;
    const Id id_;
    grpc::CallbackServerContext* const context_;  // gRPC's, alive until OnDone
    proto::FromMember incoming_;
    std::deque<proto::FromCoordinator> queue_ MUSTER_GUARDED_BY(owner_.mutex_);  // the front is being written
    size_t queued_bytes_ MUSTER_GUARDED_BY(owner_.mutex_) = 0;
    bool closing_ MUSTER_GUARDED_BY(owner_.mutex_) = false;
    bool finished_ MUSTER_GUARDED_BY(owner_.mutex_) = false;
  };

  grpc::ServerBidiReactor<proto::FromMember, proto::FromCoordinator>* Attach(
      grpc::CallbackServerContext* context) override {
    Stream* borrowed = nullptr;  // gRPC's until OnDone
    Id id = 0;
    {
      const MutexLock lock(mutex_);
      id = ++last_id_;
      auto stream = std::make_unique<Stream>(*this, id, context);
      borrowed = stream.get();
      streams_.emplace(id, std::move(stream));
      ++alive_;
    }
    handler_.connected(id, context->peer());
    borrowed->start();
    return borrowed;
  }

  void listen(const std::vector<Address>& candidates) {
    std::string tried;
    for (const auto& candidate : candidates) {
      grpc::ServerBuilder builder;
      int port = 0;
      // Without this, gRPC would let two coordinators share a port, and tasks would reach either.
      builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
      builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMilliseconds);
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

  const Handler handler_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::map<Id, std::unique_ptr<Stream>> streams_ MUSTER_GUARDED_BY(mutex_);
  Id last_id_ MUSTER_GUARDED_BY(mutex_) = 0;
  int alive_ MUSTER_GUARDED_BY(mutex_) = 0;  // streams whose last handler has not returned
  // Constant after construction.
  Address address_;
  std::unique_ptr<grpc::Server> server_;
};

ControlStreamServer::ControlStreamServer(const std::vector<Address>& listen, Handler handler)
    : impl_(std::make_unique<Impl>(listen, std::move(handler))) {}

ControlStreamServer::~ControlStreamServer() = default;

void ControlStreamServer::shutdown() {
  impl_->shutdown();
}

const Address& ControlStreamServer::address() const {
  return impl_->address();
}

void ControlStreamServer::send(Id stream, proto::FromCoordinator message) {
  impl_->with_stream(stream, [&](Impl::Stream& found) {
    found.assert_locked();
    found.send(std::move(message));
  });
}

void ControlStreamServer::close(Id stream) {
  impl_->with_stream(stream, [](Impl::Stream& found) {
    found.assert_locked();
    found.close();
  });
}

class ControlStreamClient::Impl final
    : public grpc::ClientBidiReactor<proto::FromMember, proto::FromCoordinator> {
 public:
  Impl(const Address& address, Handler handler) : handler_(std::move(handler)) {
    quiet_grpc_log();
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);          // tasks of a cluster connect directly
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a fresh attempt, not another one's back-off
    arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
    channel_ = grpc::CreateCustomChannel(address.to_string(), grpc::InsecureChannelCredentials(), arguments);
    stub_ = proto::CoordinatorService::NewStub(channel_);
    stub_->async()->Attach(&context_, this);
    StartRead(&incoming_);
    AddHold();  // writes start from outside the reactions
    StartCall();
  }

  ~Impl() override {
    context_.TryCancel();
    MutexLock lock(mutex_);
    release();
    while (!done_) changed_.wait(lock);
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void send(proto::FromMember message) {
    const MutexLock lock(mutex_);
    if (released_) return;
    queue_.push_back(std::move(message));
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      handler_.received(incoming_);
      StartRead(&incoming_);
    } else {
      const MutexLock lock(mutex_);
      release();
    }
  }

  void OnWriteDone(bool ok) override {
    const MutexLock lock(mutex_);
    queue_.pop_front();
    if (!ok) queue_.clear();
    if (!queue_.empty() && !released_) StartWrite(&queue_.front());
  }

  void OnDone(const grpc::Status& status) override {
    handler_.ended(status.error_message().empty() ? "it closed the connection" : status.error_message());
    const MutexLock lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

 private:
  void release() MUSTER_REQUIRES(mutex_) {
    if (!released_) RemoveHold();
    released_ = true;
  }

  const Handler handler_;
  std::shared_ptr<grpc::Channel> channel_;  // gRPC hands channels out shared
  std::unique_ptr<proto::CoordinatorService::Stub> stub_;
  grpc::ClientContext context_;
  proto::FromCoordinator incoming_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<proto::FromMember> queue_ MUSTER_GUARDED_BY(mutex_);  // the front is being written
  bool released_ MUSTER_GUARDED_BY(mutex_) = false;
  bool done_ MUSTER_GUARDED_BY(mutex_) = false;
};

ControlStreamClient::ControlStreamClient(const Address& address, Handler handler)
    : impl_(std::make_unique<Impl>(address, std::move(handler))) {}

ControlStreamClient::~ControlStreamClient() = default;

void ControlStreamClient::send(proto::FromMember message) {
  impl_->send(std::move(message));
}

}  // namespace muster::detail
