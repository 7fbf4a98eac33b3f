#pragma once

// A TCP port that is kept for a server that starts later, in this process or in a child.
//
// The socket is bound and never listens, with SO_REUSEADDR: Linux then lets another SO_REUSEADDR socket (what
// every server sets) bind and listen there, while nobody gets the port by chance, neither as an ephemeral
// port nor for an outgoing connection. So there is no window between choosing a port and using it.
//
// The port is kept while the object lives, which owns the socket. Nothing blocks. Of one thread at a time.

#include <string>

namespace muster::detail {

class ReservedPort {
 public:
  /// Any free port on `host`, a numeric address of this machine. Throws SystemError.
  explicit ReservedPort(const std::string& host);
  ~ReservedPort();
  ReservedPort(ReservedPort&& other) noexcept;
  ReservedPort& operator=(ReservedPort&& other) noexcept;

  int port() const { return port_; }

 private:
  int fd_ = -1;
  int port_ = 0;
};

}  // namespace muster::detail
