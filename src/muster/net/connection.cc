#include "muster/net/connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "muster/base/error.h"
#include "muster/net/address.h"

namespace muster::detail {
namespace {

constexpr auto kCheckEvery = std::chrono::milliseconds(50);
constexpr size_t kMostParts = IOV_MAX;

[[noreturn]] void connection_broke(const std::string& peer, int error) {
  raise<PeerLost>("the connection to {} broke: {}", peer,
                  error == 0 ? "the other side closed it" : describe_errno(error));
}

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

Connection::Connection(Connection&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), session_(std::exchange(other.session_, nullptr)) {}

Connection& Connection::operator=(Connection&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(session_, other.session_);
  return *this;
}

Connection::~Connection() {
  if (session_ != nullptr) SSL_free(session_);
  if (fd_ >= 0) close(fd_);
}

size_t Connection::try_send(std::span<const iovec> parts) {
  parts = parts.first(std::min(parts.size(), kMostParts));
  if (session_ == nullptr) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (would_block(errno)) return 0;
    connection_broke(peer(), errno);
  }
  size_t total = 0;
  for (const auto& part : parts) {
    if (part.iov_len == 0) continue;
    size_t sent = 0;
    ERR_clear_error();
    const int result = SSL_write_ex(session_, part.iov_base, part.iov_len, &sent);
    total += sent;
    if (result != 1) {
      const int error = SSL_get_error(session_, result);
      if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return total;
      raise<PeerLost>("the connection to {} broke: {}", peer(), tls_error());
    }
    if (sent < part.iov_len) break;
  }
  return total;
}

size_t Connection::try_receive(std::span<const iovec> parts) {
  parts = parts.first(std::min(parts.size(), kMostParts));
  if (session_ == nullptr) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    const ssize_t received = recvmsg(fd_, &message, MSG_DONTWAIT);
    if (received > 0) return static_cast<size_t>(received);
    if (received < 0 && would_block(errno)) return 0;
    connection_broke(peer(), received == 0 ? 0 : errno);
  }
  size_t total = 0;
  for (const auto& part : parts) {
    if (part.iov_len == 0) continue;
    size_t received = 0;
    ERR_clear_error();
    const int result = SSL_read_ex(session_, part.iov_base, part.iov_len, &received);
    total += received;
    if (result != 1) {
      const int error = SSL_get_error(session_, result);
      if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE || total > 0) return total;
      raise<PeerLost>("the connection to {} broke: {}", peer(), tls_error());
    }
    if (received < part.iov_len) break;
  }
  return total;
}

void Connection::wait(short events, Deadline deadline, const std::function<void()>& check, const char* what) {
  if (check) check();
  if (deadline.expired()) raise<DeadlineExceeded>("{} {} took too long", what, peer());
  pollfd entry = {.fd = fd_, .events = events, .revents = 0};
  const auto limit = std::min<Deadline::Clock::duration>(deadline.remaining(), kCheckEvery);
  poll(&entry, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(limit).count()));
}

void Connection::send(const void* data, size_t size, Deadline deadline, const std::function<void()>& check) {
  const auto* at = static_cast<const std::byte*>(data);
  while (size > 0) {
    const iovec part = {.iov_base = const_cast<std::byte*>(at), .iov_len = size};
    const size_t sent = try_send({&part, 1});
    at += sent;
    size -= sent;
    if (sent == 0) wait(POLLOUT, deadline, check, "sending to");
  }
}

void Connection::receive(void* data, size_t size, Deadline deadline, const std::function<void()>& check) {
  auto* at = static_cast<std::byte*>(data);
  while (size > 0) {
    const iovec part = {.iov_base = at, .iov_len = size};
    const size_t received = try_receive({&part, 1});
    at += received;
    size -= received;
    if (received == 0) wait(POLLIN, deadline, check, "receiving from");
  }
}

void Connection::send_descriptor(int fd, Deadline deadline, const std::function<void()>& check) {
  char byte = 'd';
  iovec part = {.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &fd, sizeof(int));
  while (sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (!would_block(errno)) connection_broke(peer(), errno);
    wait(POLLOUT, deadline, check, "sending to");
  }
}

int Connection::receive_descriptor(Deadline deadline, const std::function<void()>& check) {
  char byte = 0;
  iovec part = {.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  for (;;) {
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t received = recvmsg(fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (received > 0) {
      const cmsghdr* header = CMSG_FIRSTHDR(&message);
      if (header == nullptr || header->cmsg_type != SCM_RIGHTS)
        raise<PeerLost>("{} sent no descriptor where one was due", peer());
      int fd = -1;
      memcpy(&fd, CMSG_DATA(header), sizeof(int));
      return fd;
    }
    if (received == 0 || !would_block(errno)) connection_broke(peer(), received == 0 ? 0 : errno);
    wait(POLLIN, deadline, check, "receiving from");
  }
}

void Connection::end() {
  shutdown(fd_, SHUT_RDWR);
}

bool Connection::is_closed() const {
  pollfd entry = {.fd = fd_, .events = POLLRDHUP, .revents = 0};
  return poll(&entry, 1, 0) > 0;
}

bool Connection::is_on_this_host() const {
  sockaddr_storage ours{};
  sockaddr_storage theirs{};
  socklen_t size = sizeof(ours);
  if (getsockname(fd_, reinterpret_cast<sockaddr*>(&ours), &size) != 0) return false;
  size = sizeof(theirs);
  if (getpeername(fd_, reinterpret_cast<sockaddr*>(&theirs), &size) != 0) return false;
  if (ours.ss_family == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(ours).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(theirs).sin_addr.s_addr;
  if (ours.ss_family == AF_INET6)
    return memcmp(&reinterpret_cast<const sockaddr_in6&>(ours).sin6_addr,
                  &reinterpret_cast<const sockaddr_in6&>(theirs).sin6_addr, sizeof(in6_addr)) == 0;
  return ours.ss_family == AF_UNIX;
}

std::string Connection::peer() const {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (getpeername(fd_, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return "a peer that is gone";
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (storage.ss_family == AF_INET) {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &ipv4.sin_addr, text.data(), text.size());
    return Address{text.data(), ntohs(ipv4.sin_port)}.to_string();
  }
  if (storage.ss_family == AF_INET6) {
    const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(storage);
    inet_ntop(AF_INET6, &ipv6.sin6_addr, text.data(), text.size());
    return Address{text.data(), ntohs(ipv6.sin6_port)}.to_string();
  }
  return "a task on this host";
}

}  // namespace muster::detail
