#pragma once

// What a plan's bytes travel over: an ordered stream in each direction between two ranks, that never blocks.
// TcpLink is for ranks on different hosts; a MemoryLink (collective/native/memory_link.h) for two of one
// host.
//
// One thread may send while another receives; over connections with TLS, only one at a time. Both sides must
// use the same kind, with the same parameters. A TcpLink owns its connections.

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <vector>

#include "muster/net/connection.h"

namespace muster::detail {

class Link {
 public:
  virtual ~Link() = default;

  /// As much as can go, or has come, right now; often less than asked for, 0 when nothing. Throws PeerLost.
  virtual size_t try_send(std::span<const iovec> parts) = 0;
  virtual size_t try_receive(std::span<const iovec> parts) = 0;

  /// What to poll for when there was nothing; -1 when the peer rings our doorbell instead.
  virtual int send_fd() const { return -1; }
  virtual int receive_fd() const { return -1; }
};

/// Over one connection or several, in turn: some networks give a single stream only a part of what they have.
class TcpLink : public Link {
 public:
  explicit TcpLink(std::vector<Connection> connections) : connections_(std::move(connections)) {}

  size_t try_send(std::span<const iovec> parts) override;
  size_t try_receive(std::span<const iovec> parts) override;
  int send_fd() const override { return connections_[sending_.index].fd(); }
  int receive_fd() const override { return connections_[receiving_.index].fd(); }
  bool is_on_this_host() const { return connections_.front().is_on_this_host(); }

  /// Closes it for both sides; any thread may call it.
  void end();

  /// Whether the peer has closed it or is gone.
  bool is_closed() const { return connections_.front().is_closed(); }

 private:
  struct Cursor {
    size_t index = 0;  // of the connection whose turn it is
    size_t used = 0;   // bytes of its turn
  };
  template <typename Transfer>
  size_t in_turn(Cursor& cursor, std::span<const iovec> parts, const Transfer& transfer);

  std::vector<Connection> connections_;
  Cursor sending_;
  Cursor receiving_;
};

}  // namespace muster::detail
