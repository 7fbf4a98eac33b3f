#pragma once

// An ordered stream of bytes to one peer that has proved to know the job's secret: TCP between hosts (with
// TLS on demand), a Unix socket inside one. Endpoints make connections.
//
// One thread may send while another receives, but not with TLS. Nothing blocks except what takes a deadline.
// Once the peer is gone, every call throws PeerLost.

#include <sys/uio.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "muster/deadline.h"
#include "muster/net/tls.h"

namespace muster::detail {

class Connection {
 public:
  Connection() = default;
  Connection(int fd, SSL* session) : fd_(fd), session_(session) {}
  Connection(Connection&& other) noexcept;
  Connection& operator=(Connection&& other) noexcept;
  ~Connection();

  /// As much as the system takes or has now; 0 when it is full or empty.
  size_t try_send(std::span<const iovec> parts);
  size_t try_receive(std::span<const iovec> parts);

  /// All of it. `check` is called now and then while waiting and may throw; DeadlineExceeded at the deadline.
  void send(const void* data, size_t size, Deadline deadline, const std::function<void()>& check = {});
  void receive(void* data, size_t size, Deadline deadline, const std::function<void()>& check = {});

  /// Gives the peer on this host a descriptor of ours. Unix sockets only. `check` as above.
  void send_descriptor(int fd, Deadline deadline, const std::function<void()>& check = {});
  int receive_descriptor(Deadline deadline, const std::function<void()>& check = {});

  /// Whether the peer has closed it or is gone; what it sent before may still be there to receive.
  bool is_closed() const;

  /// Ends it in both directions; both sides find it closed. Any thread may call it.
  void end();

  /// For poll: the descriptor, and what to wait for when a send or a receive had nothing to do.
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

  std::string peer() const;  ///< "10.0.0.7:4711", for messages

  /// Whether the peer has the address that we have: nothing between us is slower than memory.
  bool is_on_this_host() const;

 private:
  void wait(short events, Deadline deadline, const std::function<void()>& check, const char* what);

  int fd_ = -1;
  SSL* session_ = nullptr;
};

}  // namespace muster::detail
