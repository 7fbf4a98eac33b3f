#include "muster/net/reserved_port.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "muster/base/error.h"

namespace muster::detail {

ReservedPort::ReservedPort(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), "0", &hints, &found); error != 0) {
    raise<SystemError>("{} is not a numeric address: {}", host, gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  fd_ = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) raise<SystemError>("no socket could be made: {}", describe_errno(errno));
  // Chosen without SO_REUSEADDR, so that the kernel picks a port that nobody holds; set afterwards, so that
  // it can be shared.
  const int on = 1;
  sockaddr_storage local{};
  socklen_t size = sizeof(local);
  if (bind(fd_, found->ai_addr, found->ai_addrlen) != 0 ||
      setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      getsockname(fd_, reinterpret_cast<sockaddr*>(&local), &size) != 0) {
    const int error = errno;
    close(fd_);
    raise<SystemError>("no free port on {}: {}", host, describe_errno(error));
  }
  port_ = ntohs(local.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&local)->sin6_port
                                            : reinterpret_cast<sockaddr_in*>(&local)->sin_port);
}

ReservedPort::~ReservedPort() {
  if (fd_ >= 0) close(fd_);
}

ReservedPort::ReservedPort(ReservedPort&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), port_(std::exchange(other.port_, 0)) {}

ReservedPort& ReservedPort::operator=(ReservedPort&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(port_, other.port_);
  return *this;
}

}  // namespace muster::detail
