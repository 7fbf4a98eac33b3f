#pragma once

// For tests: links that break, workers that say what they should not, and what the servers log about it.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/mutex.h"
#include "muster/ps/server/parameter_server_test.h"
#include "muster/ps/session_protocol.h"

namespace muster::detail::testing {

/// Stands between workers and a server, on TCP. Each connection breaks when it has carried as many bytes, in
/// both directions, as `bytes` says; what was on its way may be lost.
class Proxy {
 public:
  Proxy(Address server, std::function<int64_t()> bytes)
      : server_(std::move(server)), bytes_(std::move(bytes)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t size = sizeof(address);
    MUSTER_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    MUSTER_CHECK(listen(listener_, 64) == 0);
    MUSTER_CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    address_ = {"127.0.0.1", ntohs(address.sin_port)};
    thread_ = std::thread([this] { run(); });
  }

  ~Proxy() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    for (auto& pair : pairs_) {
      pair.end();
      for (auto& pump : pair.pumps) pump.join();
      for (const int fd : pair.fds) close(fd);
    }
    close(listener_);
  }

  const Address& address() const { return address_; }
  int breaks() const { return breaks_.load(); }

 private:
  struct Pair {
    std::array<int, 2> fds{};
    std::atomic<int64_t> left{0};
    std::array<std::thread, 2> pumps;

    void end() {
      for (const int fd : fds) shutdown(fd, SHUT_RDWR);
    }
  };

  void run() {
    for (;;) {
      const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) return;
      const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address = {.sin_family = AF_INET,
                             .sin_port = htons(static_cast<uint16_t>(server_.port)),
                             .sin_addr = {htonl(INADDR_LOOPBACK)},
                             .sin_zero = {}};
      MUSTER_CHECK(connect(server, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
      Pair& pair = pairs_.emplace_back();
      pair.fds = {client, server};
      pair.left = bytes_();
      for (size_t i = 0; i < 2; ++i)
        pair.pumps[i] = std::thread([this, &pair, i] { pump(pair, pair.fds[i], pair.fds[1 - i]); });
    }
  }

  void pump(Pair& pair, int from, int to) {
    std::array<char, 16 * 1024> buffer{};
    for (;;) {
      const ssize_t size = recv(from, buffer.data(), buffer.size(), 0);
      if (size <= 0) break;
      const int64_t before = pair.left.fetch_sub(size);
      const auto going = static_cast<size_t>(std::clamp<int64_t>(before, 0, size));
      if (going > 0 && send(to, buffer.data(), going, MSG_NOSIGNAL) != static_cast<ssize_t>(going)) break;
      if (before > size) continue;
      if (before > 0) ++breaks_;
      break;
    }
    pair.end();
  }

  const Address server_;
  const std::function<int64_t()> bytes_;
  Address address_;
  int listener_ = -1;
  std::atomic<int> breaks_{0};
  std::list<Pair> pairs_;  // of the thread that accepts
  std::thread thread_;
};

/// Keeps the log instead of printing it.
class LogLines {
 public:
  LogLines() {
    set_log_sink([this](std::string_view line) {
      const MutexLock lock(mutex_);
      lines_.emplace_back(line);
      changed_.notify_all();
    });
  }
  ~LogLines() { set_log_sink({}); }

  /// Waits for a line with this text.
  ::testing::AssertionResult has(const std::string& text) {
    MutexLock lock(mutex_);
    const auto has_text = [&](const std::string& line) { return line.find(text) != std::string::npos; };
    for (const auto deadline = Deadline::after(20s); !deadline.expired();) {
      if (std::any_of(lines_.begin(), lines_.end(), has_text)) return ::testing::AssertionSuccess();
      changed_.wait_until(lock, deadline.time_point());
    }
    std::string all;
    for (const auto& line : lines_) all += line;
    return ::testing::AssertionFailure() << "nobody logged '" << text << "', but:\n" << all;
  }

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  std::vector<std::string> lines_ MUSTER_GUARDED_BY(mutex_);
};

/// A worker on another host that says what the test wants. Throws PeerLost when the server has ended the
/// link.
class RawWorker {
 public:
  RawWorker(const ServerGroup& servers, const Hello& hello, int server = 0)
      : endpoint_({.secret = "s"}),
        connection_(
            endpoint_.connect(servers.address(server).address, worker_channel_name("j", "1"), soon())) {
    send(&hello, sizeof(hello));
  }

  static Deadline soon() { return Deadline::after(20s); }

  void send(const void* data, size_t size) { connection_.send(data, size, soon()); }

  void send(const Frame& frame, const void* data) {
    send(&frame, sizeof(frame));
    send(data, frame.bytes);
  }

  void send_request(uint64_t number, const Request& request) {
    send({.kind = Frame::Kind::kRequest, .number = number, .bytes = sizeof(request)}, &request);
  }

  void send_slice(uint32_t index, uint64_t sequence, const std::vector<float>& data) {
    send({.kind = Frame::Kind::kSlice,
          .index = index,
          .number = sequence,
          .bytes = data.size() * sizeof(float)},
         data.data());
  }

  Welcome welcome() { return receive_welcome(connection_, soon()); }

  /// The next reply; parameters are skipped.
  std::pair<uint64_t, Reply> reply() {
    for (;;) {
      Frame frame;
      connection_.receive(&frame, sizeof(frame), soon());
      std::vector<std::byte> data(frame.bytes);
      connection_.receive(data.data(), data.size(), soon());
      if (frame.kind != Frame::Kind::kReply) continue;
      Reply reply;
      MUSTER_CHECK(data.size() == sizeof(reply));
      std::copy(data.begin(), data.end(), reinterpret_cast<std::byte*>(&reply));
      return {frame.number, reply};
    }
  }

  /// Reads until the server ends the link.
  ::testing::AssertionResult is_ended(Deadline deadline = soon()) {
    std::array<std::byte, 4096> rest;
    try {
      for (;;) connection_.receive(rest.data(), rest.size(), deadline);
    } catch (const PeerLost&) {
      return ::testing::AssertionSuccess();
    } catch (const std::exception& error) {
      return ::testing::AssertionFailure() << "the link goes on: " << error.what();
    }
  }

 private:
  Endpoint endpoint_;
  Connection connection_;
};

}  // namespace muster::detail::testing
