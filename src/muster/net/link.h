#pragma once

// What a plan's bytes travel over: an ordered stream in each direction between two ranks, that never blocks.
// TcpLink is for ranks on different hosts, MemoryLink for two of one host.
//
// One thread may send while another receives; over connections with TLS, only one at a time. Both sides must
// use the same kind, with the same parameters. A TcpLink owns its connections; a MemoryLink uses pipes and a
// doorbell that its maker keeps for it.

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "muster/net/arena.h"
#include "muster/net/connection.h"
#include "muster/net/futex.h"

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

/// One direction of a MemoryLink, in shared memory: bytes [tail, head) are on their way.
struct MemoryPipe {
  alignas(64) std::atomic<uint64_t> head{0};
  alignas(64) std::atomic<uint64_t> tail{0};
  alignas(64) std::byte data[256 * 1024];  // fits into a second-level cache beside what is being reduced
};

class MemoryLink : public Link {
 public:
  /// `ours` is the pipe that we fill; `find_theirs` gives the peer's, or nullptr while it has none. The
  /// doorbell is rung when the peer has something to do.
  MemoryLink(MemoryPipe* ours, std::function<MemoryPipe*()> find_theirs, Doorbell* doorbell_of_peer)
      : ours_(ours), find_theirs_(std::move(find_theirs)), doorbell_of_peer_(doorbell_of_peer) {}

  size_t try_send(std::span<const iovec> parts) override;
  size_t try_receive(std::span<const iovec> parts) override;

 private:
  MemoryPipe* const ours_;
  const std::function<MemoryPipe*()> find_theirs_;
  MemoryPipe* theirs_ = nullptr;
  Doorbell* const doorbell_of_peer_;
};

}  // namespace muster::detail
