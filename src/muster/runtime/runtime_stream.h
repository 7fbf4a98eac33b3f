#pragma once

// The control streams of servers (cluster/control_stream.h), with the handshake that runtime.proto shows.
// Internal to the room: it includes generated code.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/cluster/control_stream.h"
#include "muster/deadline.h"
#include "muster/net/secret.h"
#include "muster/runtime/runtime.pb.h"

namespace muster::runtime {
class RuntimeService;
}

namespace muster::detail {

struct RuntimeProtocol {
  using FromClient = runtime::FromClient;
  using FromServer = runtime::FromServer;
  using Service = runtime::RuntimeService;
  static constexpr const char* kServer = "the server";
  static constexpr int kMaxFromClient = 16 << 20;  // bytes; also of those who have proved nothing yet
  static constexpr int kMaxFromServer = 1024
                                        << 20;  // where millions of nodes were placed, if that is asked for
};

/// A server's streams, whose clients have proved that they know the secret.
class RuntimeStreams {
 public:
  using Id = uint64_t;

  struct Handler {
    std::function<void(Id, const runtime::Request&)> requested;  ///< must not block
    std::function<void(Id)> ended;                               ///< the last of a stream
  };

  struct Options {
    Address address;
    std::string secret;
    runtime::Peer self;                 ///< what the server says of itself
    std::chrono::milliseconds silence;  ///< how long a client may answer nothing
  };

  /// Throws SystemError when the address can't be had.
  RuntimeStreams(const Options& options, Handler handler);
  ~RuntimeStreams() { shutdown(); }

  const Address& address() const { return streams_->address(); }

  void reply(Id stream, const runtime::Reply& reply);
  void notice(Id stream, const std::string& text);
  void shutdown();

 private:
  struct Stream {
    std::string peer;
    std::string client_nonce;
    std::string server_nonce;
    bool is_proved = false;
  };

  void received(Id id, const runtime::FromClient& message);
  void refuse(Id id, const std::string& reason);

  const Secret secret_;
  const runtime::Peer self_;
  const Handler handler_;
  Mutex mutex_;
  std::map<Id, Stream> known_ MUSTER_GUARDED_BY(mutex_);
  std::unique_ptr<ControlStreamServer<RuntimeProtocol>> streams_;
};

/// A stream to a server. Thread-safe; what waits takes a deadline.
class RuntimeClient {
 public:
  /// Called now and then while it waits; it may throw.
  using Check = std::function<void()>;

  /// Connects and proves the secret. Throws Refused when the server does not know the secret or will not have
  /// us, PeerLost when nobody is there, DeadlineExceeded.
  RuntimeClient(const Address& address, const std::string& secret, Deadline deadline,
                const Check& check = {});
  ~RuntimeClient();

  const runtime::Peer& server() const { return server_; }
  bool is_alive() const;

  /// Sends a request, whose number it sets, and gives a number to wait with.
  uint64_t send(runtime::Request request);

  /// The reply, whose failure is thrown; `notice` gets what the server says meanwhile. Throws PeerLost when
  /// the stream ends, DeadlineExceeded.
  runtime::Reply wait(uint64_t request, Deadline deadline, const Check& check = {},
                      const std::function<void(const std::string&)>& notice = {});

 private:
  void wait_for_change(MutexLock& lock, Deadline deadline, const Check& check) MUSTER_REQUIRES(mutex_);
  void received(const runtime::FromServer& message);

  const Secret secret_;
  const std::string address_;
  std::string nonce_;
  std::string server_nonce_;  // of gRPC's threads
  runtime::Peer server_;

  mutable Mutex mutex_;
  ConditionVariable changed_;
  bool is_welcome_ MUSTER_GUARDED_BY(mutex_) = false;
  bool has_ended_ MUSTER_GUARDED_BY(mutex_) = false;
  std::string why_ended_ MUSTER_GUARDED_BY(mutex_);
  std::string refusal_ MUSTER_GUARDED_BY(mutex_);
  runtime::Peer welcomed_by_ MUSTER_GUARDED_BY(mutex_);
  std::map<uint64_t, runtime::Reply> replies_ MUSTER_GUARDED_BY(mutex_);
  std::vector<std::string> notices_ MUSTER_GUARDED_BY(mutex_);
  uint64_t last_request_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<ControlStreamClient<RuntimeProtocol>> stream_;
};

}  // namespace muster::detail
