#pragma once

// gRPC streams of a protocol's messages, and nothing else: messages go in and come out. What they mean is
// decided elsewhere (for the coordinator's in coordinator_state.h and member.cc). A protocol is
//
//   struct CoordinatorProtocol {
//     using FromClient = proto::FromMember;
//     using FromServer = proto::FromCoordinator;
//     using Service = proto::CoordinatorService;    // with one call, Attach, a stream in both directions
//     static constexpr const char* kServer = "the coordinator";
//     static constexpr int kMaxFromClient = 64 << 20;  // bytes of a message
//     static constexpr int kMaxFromServer = 64 << 20;
//   };
//
// and a source of its own that includes control_stream_impl.h, with all of gRPC, and instantiates both
// classes.
//
// Thread-safe. send() and close() queue and return: they never block, and may be called from within a
// handler. Handlers run on gRPC's threads, without any lock of ours held; those of one stream run one at a
// time.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/net/address.h"

namespace muster::detail {

/// The server's end: many streams, told apart by number.
template <typename Protocol>
class ControlStreamServer {
 public:
  using Id = uint64_t;
  using FromClient = typename Protocol::FromClient;
  using FromServer = typename Protocol::FromServer;

  struct Handler {
    std::function<void(Id, const std::string& peer)> connected;
    std::function<void(Id, const FromClient&)> received;
    std::function<void(Id)> disconnected;  ///< the last of a stream
  };

  /// Listens on the first of these that is free. A client whose host answers nothing for `silence` counts as
  /// gone; 0: as the system sees it. Throws SystemError when no address is free.
  ControlStreamServer(const std::vector<Address>& listen, Handler handler,
                      std::chrono::milliseconds silence = std::chrono::milliseconds(0));

  ~ControlStreamServer();

  /// Ends all streams. No handler runs afterwards, and sending does nothing.
  void shutdown();

  const Address& address() const;
  void send(Id stream, FromServer message);

  /// Ends the stream when all that was sent has gone out.
  void close(Id stream);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// A client's end: one stream.
template <typename Protocol>
class ControlStreamClient {
 public:
  using FromClient = typename Protocol::FromClient;
  using FromServer = typename Protocol::FromServer;

  struct Handler {
    std::function<void(const FromServer&)> received;
    std::function<void(const std::string& why)> ended;  ///< once, the last
  };

  /// Connects in the background: a failure is told through `ended`. `silence` is as the server's.
  ControlStreamClient(const Address& address, Handler handler,
                      std::chrono::milliseconds silence = std::chrono::milliseconds(0));

  /// Ends the stream. No handler runs afterwards.
  ~ControlStreamClient();

  void send(FromClient message);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::detail
