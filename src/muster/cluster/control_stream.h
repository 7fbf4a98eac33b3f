#pragma once

// The coordinator's gRPC streams, and nothing else: messages of the protocol go in and come out. What they
// mean is decided in coordinator_state.h and member.cc. Internal to the room: it includes generated code.
//
// Thread-safe. send() and close() queue and return: they never block, and may be called from within a
// handler. Handlers run on gRPC's threads, without any lock of ours held; those of one stream run one at a
// time.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/cluster/coordinator.pb.h"
#include "muster/net/address.h"

namespace muster::detail {

/// The coordinator's end: many streams, told apart by number.
class ControlStreamServer {
 public:
  using Id = uint64_t;

  struct Handler {
    std::function<void(Id, const std::string& peer)> connected;
    std::function<void(Id, const proto::FromMember&)> received;
    std::function<void(Id)> disconnected;  ///< the last of a stream
  };

  /// Listens on the first of these that is free. Throws SystemError when none is.
  ControlStreamServer(const std::vector<Address>& listen, Handler handler);

  ~ControlStreamServer();

  /// Ends all streams. No handler runs afterwards, and sending does nothing.
  void shutdown();

  const Address& address() const;
  void send(Id stream, proto::FromCoordinator message);

  /// Ends the stream when all that was sent has gone out.
  void close(Id stream);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// A member's end: one stream.
class ControlStreamClient {
 public:
  struct Handler {
    std::function<void(const proto::FromCoordinator&)> received;
    std::function<void(const std::string& why)> ended;  ///< once, the last
  };

  /// Connects in the background: a failure is told through `ended`.
  ControlStreamClient(const Address& address, Handler handler);

  /// Ends the stream. No handler runs afterwards.
  ~ControlStreamClient();

  void send(proto::FromMember message);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::detail
