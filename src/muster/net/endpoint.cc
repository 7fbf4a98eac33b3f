#include "muster/net/endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/base/start_thread.h"
#include "muster/net/resolve.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kMagic = "muster.1";
constexpr size_t kNonce = 32;
constexpr size_t kProof = 32;
constexpr std::array<char, kProof> kRefusal = {};  // in the place of a proof
constexpr size_t kLongestChannelName = 1000;
// Connections that have not proved themselves; the oldest goes when there are more.
constexpr size_t kMostPending = 1024;
// One that has not proved itself for so long is reported. It is not closed: it may be of a task that is
// merely slow.
constexpr auto kReportSilence = 5s;
constexpr auto kLookEvery = 50ms;         // while waiting
constexpr int kLocalBuffer = 128 * 1024;  // so that what travels inside a host stays in a cache

std::string challenge(const char* role, const std::string& connecting, const std::string& accepting,
                      const std::string& channel_name) {
  return fmt::format("{}|{}|{}|{}", role, connecting, accepting, channel_name);
}

void tune(const Connection& connection) {
  const int fd = connection.fd();
  const int on = 1;
  const int idle = 5;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof(idle));
  if (connection.is_on_this_host())
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kLocalBuffer, sizeof(kLocalBuffer));
}

sockaddr_un local_address(const std::string& name, socklen_t& size) {
  sockaddr_un address{};
  if (name.size() >= sizeof(address.sun_path))
    raise<InvalidArgument>("a name of {} bytes is none of a socket on this host", name.size());
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, name.data(), name.size());  // a leading zero: the abstract namespace
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Descriptor make_socket(int family) {
  Descriptor result(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!result) raise<SystemError>("no socket: {}", describe_errno(errno));
  return result;
}

Descriptor listen_tcp(const std::string& host, int port, int& bound) {
  const auto listen_on = [&](const ResolvedAddress& one, Deadline) {
    Descriptor listener = make_socket(one.family());
    const int on = 1;
    setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_storage storage{};
    socklen_t size = sizeof(storage);
    if (bind(listener.get(), one.get(), one.size) != 0 || listen(listener.get(), 1024) != 0 ||
        getsockname(listener.get(), reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
      raise<SystemError>("the data port {} can't be listened on: {}", Address{host, port}.to_string(),
                         describe_errno(errno));
    }
    bound = ntohs(storage.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(storage).sin_port
                                               : reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
    return listener;
  };
  return first_that_works(resolve({host, port}, /*passive=*/true), Deadline::never(), listen_on);
}

Descriptor listen_local(const std::string& name) {
  Descriptor listener = make_socket(AF_UNIX);
  socklen_t size = 0;
  const sockaddr_un address = local_address(name, size);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(listener.get(), 1024) != 0) {
    raise<SystemError>("no socket for peers on this host: {}", describe_errno(errno));
  }
  return listener;
}

void finish_connect(int fd, const std::string& where, Deadline deadline, const Endpoint::Check& check) {
  for (;;) {
    pollfd entry = {.fd = fd, .events = POLLOUT, .revents = 0};
    const auto limit = std::min<Deadline::Clock::duration>(deadline.remaining(), kLookEvery);
    const int ready =
        poll(&entry, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(limit).count()));
    if (ready > 0) break;
    if (check) check();
    if (deadline.expired()) raise<DeadlineExceeded>("{} did not answer in time", where);
  }
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) raise<PeerLost>("{} can't be reached: {}", where, describe_errno(error));
}

}  // namespace

struct Endpoint::Pending {
  enum class Next { kGreeting, kProof };
  Connection connection;
  Deadline report = Deadline::after(kReportSilence);
  Next next = Next::kGreeting;  // what it has to send
  std::string received;
  std::string nonce;
  std::string their_nonce;
  std::string channel_name;
  std::string peer;
};

Endpoint::Endpoint(const Options& options) : secret_(options.secret) {
  if (!options.tls.empty()) tls_ = std::make_unique<TlsContext>(options.tls);
  address_.host = options.host;
  tcp_ = listen_tcp(options.host, options.port, address_.port);
  local_name_ = "muster-" + random_token();
  local_ = listen_local(local_name_);
  stop_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_) raise<SystemError>("no event for the data port: {}", describe_errno(errno));
  thread_ = start_thread([this] { run(); });
}

Endpoint::~Endpoint() {
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void Endpoint::run() {
  std::list<Pending> pending;
  for (;;) {
    std::vector<pollfd> waits = {{.fd = stop_.get(), .events = POLLIN, .revents = 0},
                                 {.fd = tcp_.get(), .events = POLLIN, .revents = 0},
                                 {.fd = local_.get(), .events = POLLIN, .revents = 0}};
    for (const auto& one : pending)
      waits.push_back({.fd = one.connection.fd(), .events = POLLIN, .revents = 0});
    poll(waits.data(), waits.size(), pending.empty() ? -1 : 500);
    if (waits[0].revents != 0) return;
    for (auto one = pending.begin(); one != pending.end();) {
      bool stays = false;
      try {
        stays = advance(*one);
        if (stays && one->report.expired()) {
          one->report = Deadline::never();
          warn(fmt::format("{} connected to the data port and did not introduce itself within {}", one->peer,
                           format_seconds(kReportSilence)));
        }
      } catch (const Error& error) {
        warn(fmt::format("dropped {}: {}", one->peer, error.what()));
      }
      one = stays ? std::next(one) : pending.erase(one);
    }
    if (waits[1].revents != 0) admit(tcp_.get(), pending);
    if (waits[2].revents != 0) admit(local_.get(), pending);
  }
}

void Endpoint::warn(const std::string& text) {
  if (warnings_.allows(Deadline::Clock::now())) log_warning("{}{}", text, warnings_.left_out());
}

void Endpoint::admit(int listener, std::list<Pending>& pending) {
  for (;;) {
    Descriptor descriptor(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!descriptor) {
      if (errno != EMFILE && errno != ENFILE) return;
      warn(fmt::format("the data port can't take a connection: {}", describe_errno(errno)));
      if (pending.empty()) {
        std::this_thread::sleep_for(100ms);
        return;
      }
      pending.pop_front();  // a stranger, most likely
      continue;
    }
    const bool over_tcp = listener == tcp_.get();
    try {
      SSL* session = over_tcp && tls_ ? tls_->start(descriptor.get(), true) : nullptr;
      Pending one{.connection = Connection(descriptor.release(), session), .nonce = random_bytes(kNonce)};
      if (over_tcp) tune(one.connection);
      one.peer = one.connection.peer();
      pending.push_back(std::move(one));
    } catch (const Error& error) {
      warn(fmt::format("the data port can't take a connection: {}", error.what()));
    }
    if (pending.size() > kMostPending) {
      warn(fmt::format("dropped {}: {} others have not introduced themselves yet", pending.front().peer,
                       kMostPending));
      pending.pop_front();
    }
  }
}

// Reads what has come; false when the connection is done with, well or not.
bool Endpoint::advance(Pending& pending) {
  std::array<char, 2048> buffer{};
  const iovec part = {.iov_base = buffer.data(), .iov_len = buffer.size()};
  const size_t size = pending.connection.try_receive({&part, 1});
  pending.received.append(buffer.data(), size);
  if (pending.next == Pending::Next::kGreeting) {
    const size_t known = std::min(pending.received.size(), kMagic.size());
    if (pending.received.compare(0, known, kMagic.substr(0, known)) != 0)
      raise<Refused>("it does not speak our protocol");
    const size_t head = kMagic.size() + kNonce + 2;
    if (pending.received.size() < head) return true;
    const size_t length = static_cast<unsigned char>(pending.received[head - 2]) +
                          size_t{256} * static_cast<unsigned char>(pending.received[head - 1]);
    if (length > kLongestChannelName) raise<Refused>("it does not speak our protocol");
    if (pending.received.size() < head + length) return true;
    pending.their_nonce = pending.received.substr(kMagic.size(), kNonce);
    pending.channel_name = pending.received.substr(head, length);
    pending.received.erase(0, head + length);
    pending.connection.send(pending.nonce.data(), pending.nonce.size(), Deadline::after(1s));
    pending.next = Pending::Next::kProof;
  }
  if (pending.received.size() < kProof) return true;
  if (!secret_.verify(challenge("connect", pending.their_nonce, pending.nonce, pending.channel_name),
                      pending.received.substr(0, kProof))) {
    pending.connection.send(kRefusal.data(), kProof, Deadline::after(1s));
    raise<Refused>("it does not know the job's secret");
  }
  if (pending.received.size() > kProof) raise<Refused>("it went on before it was accepted");
  const std::string proof =
      secret_.prove(challenge("accept", pending.their_nonce, pending.nonce, pending.channel_name));
  pending.connection.send(proof.data(), proof.size(), Deadline::after(1s));
  const MutexLock lock(mutex_);
  waiting_.emplace(pending.channel_name, std::move(pending.connection));
  arrived_.notify_all();
  return false;
}

Connection Endpoint::introduce(Descriptor descriptor, bool over_tcp, const std::string& channel_name,
                               Deadline deadline, const Check& check) {
  MUSTER_CHECK(channel_name.size() <= kLongestChannelName);
  SSL* session = over_tcp && tls_ ? tls_->start(descriptor.get(), false) : nullptr;
  Connection connection(descriptor.release(), session);
  if (over_tcp) tune(connection);
  const std::string peer = connection.peer();
  const std::string nonce = random_bytes(kNonce);
  std::string greeting = std::string(kMagic) + nonce;
  greeting += static_cast<char>(channel_name.size() % 256);
  greeting += static_cast<char>(channel_name.size() / 256);
  greeting += channel_name;
  try {
    connection.send(greeting.data(), greeting.size(), deadline, check);
    std::string their_nonce(kNonce, '\0');
    connection.receive(their_nonce.data(), kNonce, deadline, check);
    const std::string proof = secret_.prove(challenge("connect", nonce, their_nonce, channel_name));
    connection.send(proof.data(), proof.size(), deadline, check);
    std::string their_proof(kProof, '\0');
    connection.receive(their_proof.data(), kProof, deadline, check);
    if (std::ranges::equal(their_proof, kRefusal))
      raise<Refused>("{} did not accept us: do both know the same secret (MUSTER_SECRET)?", peer);
    if (!secret_.verify(challenge("accept", nonce, their_nonce, channel_name), their_proof))
      raise<Refused>("{} does not know the job's secret", peer);
  } catch (const PeerLost& error) {
    if (session != nullptr)
      raise<Refused>(
          "{} did not accept us: do both use TLS, with certificates of one authority? Or has it just "
          "ended? ({})",
          peer, error.what());
    raise<PeerLost>("{} did not go on: has it just ended, or does it alone use TLS? ({})", peer,
                    error.what());
  }
  return connection;
}

Connection Endpoint::connect(const Address& address, const std::string& channel_name, Deadline deadline,
                             const Check& check) {
  const auto reach = [&](const ResolvedAddress& one, Deadline share) {
    Descriptor tried = make_socket(one.family());
    if (::connect(tried.get(), one.get(), one.size) != 0 && errno != EINPROGRESS)
      raise<PeerLost>("{} can't be reached: {}", address.to_string(), describe_errno(errno));
    finish_connect(tried.get(), address.to_string(), share, check);
    return tried;
  };
  Descriptor descriptor = first_that_works(resolve(address, /*passive=*/false), deadline, reach);
  return introduce(std::move(descriptor), /*over_tcp=*/true, channel_name, deadline, check);
}

Connection Endpoint::connect_local(const std::string& local_name, const std::string& channel_name,
                                   Deadline deadline, const Check& check) {
  Descriptor descriptor = make_socket(AF_UNIX);
  socklen_t size = 0;
  const sockaddr_un address = local_address(local_name, size);
  while (::connect(descriptor.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    if (errno != EAGAIN || deadline.expired())
      raise<PeerLost>("a task on this host can't be reached: {}", describe_errno(errno));
    if (check) check();
    std::this_thread::sleep_for(1ms);  // its backlog is full
  }
  return introduce(std::move(descriptor), /*over_tcp=*/false, channel_name, deadline, check);
}

Connection Endpoint::accept(const std::string& channel_name, Deadline deadline, const Check& check) {
  return wait_for([&](auto& waiting) { return waiting.find(channel_name); }, channel_name, deadline, check)
      .second;
}

std::pair<std::string, Connection> Endpoint::accept_any(const std::string& prefix, Deadline deadline,
                                                        const Check& check) {
  const auto find = [&](auto& waiting) {
    const auto found = waiting.lower_bound(prefix);
    return found != waiting.end() && found->first.starts_with(prefix) ? found : waiting.end();
  };
  return wait_for(find, prefix, deadline, check);
}

template <typename Find>
std::pair<std::string, Connection> Endpoint::wait_for(const Find& find, const std::string& channel_name,
                                                      Deadline deadline, const Check& check) {
  MutexLock lock(mutex_);
  for (;;) {
    const auto found = find(waiting_);
    if (found != waiting_.end()) {
      std::pair<std::string, Connection> result(found->first, std::move(found->second));
      waiting_.erase(found);
      return result;
    }
    if (deadline.expired())
      raise<DeadlineExceeded>("nobody connected to the channel '{}' in time", channel_name);
    if (check) {
      lock.unlock();
      check();
      lock.lock();
    }
    arrived_.wait_until(lock, std::min(deadline.time_point(), Deadline::Clock::now() + kLookEvery));
  }
}

}  // namespace muster::detail
