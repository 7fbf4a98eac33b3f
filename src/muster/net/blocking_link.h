#pragma once

// A link whose sends and receives wait. One thread may send while another receives. What is small is read
// ahead, so that much of it costs one call of the system. It owns its connections. Waits have no limit but
// the `check` that they call now and then, which may throw; a peer that is gone is PeerLost.

#include <functional>
#include <span>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/deadline.h"
#include "muster/net/link.h"

namespace muster::detail {

class BlockingLink {
 public:
  BlockingLink(std::vector<Connection> connections, bool encrypted);

  using Check = std::function<void()>;  ///< called now and then while waiting; may throw
  void send(std::span<const iovec> parts, const Check& check);
  void receive(std::span<const iovec> parts, const Check& check);

  /// As much as goes at once; with `may_yield` also what a peer on this host takes while this thread yields
  /// to it. Gives the bytes.
  size_t send_some(std::span<const iovec> parts, bool may_yield);

  /// Closes it for both sides: who waits in it, here and there, gets PeerLost. Any thread may call it.
  void end() { link_.end(); }

  /// Whether the peer has closed it or is gone.
  bool is_closed() const { return link_.is_closed(); }

  template <typename T>
  void send_one(const T& value, const Check& check) {
    const iovec part = {const_cast<T*>(&value), sizeof(T)};
    send({&part, 1}, check);
  }
  template <typename T>
  T receive_one(const Check& check) {
    T value;
    const iovec part = {&value, sizeof(T)};
    receive({&part, 1}, check);
    return value;
  }

 private:
  // For a peer on this host it yields at first, which spares a sleep and the waking: the peer may need this
  // very core. Where others compute on the cores, a yield takes longer than a sleep: then it does so no more.
  struct Waiting {
    explicit Waiting(bool peer_is_near) : is_near(peer_is_near) {}
    void begin_anew() { until = {}; }
    bool yield();  // false when it has been long enough
    void wait(int fd, short events, const Check& check);

    const bool is_near;
    Deadline::Clock::time_point until;  // none while it does not wait
    Deadline::Clock::time_point next;   // no yields before
  };

  static void get_on(Waiting& waiting);
  size_t try_send(std::span<const iovec> parts);
  size_t try_receive(std::span<const iovec> parts);

  TcpLink link_;
  const bool encrypted_;
  Waiting sending_;
  Waiting receiving_;
  Mutex mutex_;                   // of an encrypted link, which has one state for both directions
  std::vector<std::byte> ahead_;  // what came behind what was asked for: bytes [taken_, read_)
  size_t taken_ = 0;
  size_t read_ = 0;
};

}  // namespace muster::detail
