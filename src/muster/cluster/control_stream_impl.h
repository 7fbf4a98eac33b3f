#pragma once

// How control streams work: gRPC's callbacks. Included once for each protocol, where it is instantiated.

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>

#include <fmt/format.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/mutex.h"
#include "muster/cluster/control_stream.h"

namespace muster::detail {

// A client that reads nothing while this much waits for it is as good as dead.
constexpr size_t kMaxQueuedControl = size_t{2} << 30;
// A connection that says nothing is dropped after this long. A task that was merely slow connects again.
constexpr int kHandshakeMilliseconds = 60000;

// gRPC's own lines go to our log, at debug level.
inline void quiet_grpc_log() {
  static std::once_flag once;
  std::call_once(once, [] {
    gpr_set_log_function(
        [](gpr_log_func_args* line) { log_debug("grpc {}:{}: {}", line->file, line->line, line->message); });
  });
}

// gRPC asks the other side whether it is there in the first half of that time, and waits for the other half.
template <typename Set>
void end_after_silence(std::chrono::milliseconds silence, const Set& set) {
  if (silence.count() == 0) return;
  const auto half = static_cast<int>(std::max<int64_t>(1, silence.count() / 2));
  set(GRPC_ARG_KEEPALIVE_TIME_MS, half);
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, half);
  // However often, though nothing else is said.
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  set(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
}

template <typename Protocol>
class ControlStreamServer<Protocol>::Impl final : public Protocol::Service::CallbackService {
 public:
  Impl(const std::vector<Address>& candidates, Handler handler, std::chrono::milliseconds silence)
      : handler_(std::move(handler)) {
    quiet_grpc_log();
    listen(candidates, silence);
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
  class Stream final : public grpc::ServerBidiReactor<FromClient, FromServer> {
   public:
    Stream(Impl& owner, Id id, grpc::CallbackServerContext* context)
        : owner_(owner), id_(id), context_(context) {}

    void start() { this->StartRead(&incoming_); }

    // For callers that hold the owner's lock where the analysis can't see it.
    void assert_locked() const MUSTER_ASSERT_HELD(owner_.mutex_) {}

    void send(FromServer message) MUSTER_REQUIRES(owner_.mutex_) {
      if (closing_) return;
      queued_bytes_ += message.ByteSizeLong();
      queue_.push_back(std::move(message));
      if (queued_bytes_ > kMaxQueuedControl) {
        context_->TryCancel();
      } else if (queue_.size() == 1) {
        this->StartWrite(&queue_.front());
      }
    }

    void close() MUSTER_REQUIRES(owner_.mutex_) {
      closing_ = true;
      if (finished_ || !queue_.empty()) return;
      finished_ = true;
      this->Finish(grpc::Status::OK);
    }

    void OnReadDone(bool ok) override {
      if (ok) {
        owner_.handler_.received(id_, incoming_);
        this->StartRead(&incoming_);
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
        this->StartWrite(&queue_.front());
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
    FromClient incoming_;
    std::deque<FromServer> queue_ MUSTER_GUARDED_BY(owner_.mutex_);  // the front is being written
    size_t queued_bytes_ MUSTER_GUARDED_BY(owner_.mutex_) = 0;
    bool closing_ MUSTER_GUARDED_BY(owner_.mutex_) = false;
    bool finished_ MUSTER_GUARDED_BY(owner_.mutex_) = false;
  };

  grpc::ServerBidiReactor<FromClient, FromServer>* Attach(grpc::CallbackServerContext* context) override {
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

  void listen(const std::vector<Address>& candidates, std::chrono::milliseconds silence) {
    std::string tried;
    for (const auto& candidate : candidates) {
      grpc::ServerBuilder builder;
      int port = 0;
      // Without this, gRPC would let two servers share a port, and clients would reach either.
      builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
      builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMilliseconds);
      builder.SetMaxReceiveMessageSize(Protocol::kMaxFromClient);
      end_after_silence(silence,
                        [&builder](const char* name, int value) { builder.AddChannelArgument(name, value); });
      builder.AddListeningPort(candidate.to_string(), grpc::InsecureServerCredentials(), &port);
      builder.RegisterService(this);
      server_ = builder.BuildAndStart();
      if (server_ && port != 0) {
        address_ = {candidate.host, port};
        return;
      }
      tried += (tried.empty() ? "" : ", ") + candidate.to_string();
    }
    raise<SystemError>("{} can't listen on {}: the port is taken, or the address is not one of this host",
                       Protocol::kServer, tried);
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

template <typename Protocol>
ControlStreamServer<Protocol>::ControlStreamServer(const std::vector<Address>& listen, Handler handler,
                                                   std::chrono::milliseconds silence)
    : impl_(std::make_unique<Impl>(listen, std::move(handler), silence)) {}

template <typename Protocol>
ControlStreamServer<Protocol>::~ControlStreamServer() = default;

template <typename Protocol>
void ControlStreamServer<Protocol>::shutdown() {
  impl_->shutdown();
}

template <typename Protocol>
const Address& ControlStreamServer<Protocol>::address() const {
  return impl_->address();
}

template <typename Protocol>
void ControlStreamServer<Protocol>::send(Id stream, FromServer message) {
  impl_->with_stream(stream, [&](auto& found) {
    found.assert_locked();
    found.send(std::move(message));
  });
}

template <typename Protocol>
void ControlStreamServer<Protocol>::close(Id stream) {
  impl_->with_stream(stream, [](auto& found) {
    found.assert_locked();
    found.close();
  });
}

template <typename Protocol>
class ControlStreamClient<Protocol>::Impl final : public grpc::ClientBidiReactor<FromClient, FromServer> {
 public:
  Impl(const Address& address, Handler handler, std::chrono::milliseconds silence)
      : handler_(std::move(handler)) {
    quiet_grpc_log();
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);          // tasks of a cluster connect directly
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a fresh attempt, not another one's back-off
    arguments.SetMaxReceiveMessageSize(Protocol::kMaxFromServer);
    end_after_silence(silence, [&arguments](const char* name, int value) { arguments.SetInt(name, value); });
    channel_ = grpc::CreateCustomChannel(address.to_string(), grpc::InsecureChannelCredentials(), arguments);
    stub_ = Protocol::Service::NewStub(channel_);
    stub_->async()->Attach(&context_, this);
    this->StartRead(&incoming_);
    this->AddHold();  // writes start from outside the reactions
    this->StartCall();
  }

  ~Impl() override {
    context_.TryCancel();
    MutexLock lock(mutex_);
    release();
    while (!done_) changed_.wait(lock);
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void send(FromClient message) {
    const MutexLock lock(mutex_);
    if (released_) return;
    queue_.push_back(std::move(message));
    if (queue_.size() == 1) this->StartWrite(&queue_.front());
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      handler_.received(incoming_);
      this->StartRead(&incoming_);
    } else {
      const MutexLock lock(mutex_);
      release();
    }
  }

  void OnWriteDone(bool ok) override {
    const MutexLock lock(mutex_);
    queue_.pop_front();
    if (!ok) queue_.clear();
    if (!queue_.empty() && !released_) this->StartWrite(&queue_.front());
  }

  void OnDone(const grpc::Status& status) override {
    handler_.ended(status.error_message().empty() ? "it closed the connection" : status.error_message());
    const MutexLock lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

 private:
  void release() MUSTER_REQUIRES(mutex_) {
    if (!released_) this->RemoveHold();
    released_ = true;
  }

  const Handler handler_;
  std::shared_ptr<grpc::Channel> channel_;  // gRPC hands channels out shared
  std::unique_ptr<typename Protocol::Service::Stub> stub_;
  grpc::ClientContext context_;
  FromServer incoming_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<FromClient> queue_ MUSTER_GUARDED_BY(mutex_);  // the front is being written
  bool released_ MUSTER_GUARDED_BY(mutex_) = false;
  bool done_ MUSTER_GUARDED_BY(mutex_) = false;
};

template <typename Protocol>
ControlStreamClient<Protocol>::ControlStreamClient(const Address& address, Handler handler,
                                                   std::chrono::milliseconds silence)
    : impl_(std::make_unique<Impl>(address, std::move(handler), silence)) {}

template <typename Protocol>
ControlStreamClient<Protocol>::~ControlStreamClient() = default;

template <typename Protocol>
void ControlStreamClient<Protocol>::send(FromClient message) {
  impl_->send(std::move(message));
}

}  // namespace muster::detail
