#include "muster/net/link.h"

#include <sys/socket.h>

#include <thread>

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

std::byte pattern(size_t i) {
  return static_cast<std::byte>(i * 7 + i / 251);
}

// Streams `size` bytes one way in awkward sizes, two ranges of memory a call, and checks each.
void stream(Link& from, Link& to, size_t size) {
  std::thread sender([&] {
    std::vector<std::byte> data(size);
    for (size_t i = 0; i < size; ++i) data[i] = pattern(i);
    size_t sent = 0;
    while (sent < size) {
      const size_t first = std::min<size_t>(size - sent, 1000);
      const size_t second = std::min<size_t>(size - sent - first, 70'001);
      const iovec parts[] = {{data.data() + sent, first}, {data.data() + sent + first, second}};
      sent += from.try_send(parts);
    }
  });
  size_t received = 0;
  bool right = true;
  while (received < size) {
    std::byte a[777];
    std::vector<std::byte> b(50'000);
    const size_t first = std::min(size - received, sizeof(a));
    const iovec parts[] = {{a, first}, {b.data(), std::min(size - received - first, b.size())}};
    const size_t got = to.try_receive(parts);
    for (size_t i = 0; i < got; ++i)
      right = right && (i < first ? a[i] : b[i - first]) == pattern(received + i);
    received += got;
  }
  sender.join();
  EXPECT_TRUE(right);
}

struct Pair {
  explicit Pair(int sockets) {
    for (int i = 0; i < sockets; ++i) {
      int fds[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
      left.emplace_back(fds[0], nullptr);
      right.emplace_back(fds[1], nullptr);
    }
  }
  std::vector<Connection> left;
  std::vector<Connection> right;
};

TEST(TcpLink, CarriesBytesInOrderOverOneSocketAndOverSeveral) {
  for (const int sockets : {1, 2, 3}) {
    Pair pair(sockets);
    TcpLink left(std::move(pair.left));
    TcpLink right(std::move(pair.right));
    stream(left, right, 3'000'001);
    stream(right, left, 1'000'003);
    stream(left, right, 5);
  }
}

TEST(TcpLink, APeerThatIsGoneIsAnError) {
  Pair pair(1);
  TcpLink left(std::move(pair.left));
  pair.right.clear();
  char byte = 0;
  const iovec part = {&byte, 1};
  EXPECT_THROW(left.try_receive({&part, 1}), PeerLost);
}

TEST(MemoryLink, CarriesBytesInOrderAroundItsPipe) {
  const auto a = std::make_unique<MemoryPipe>();
  const auto b = std::make_unique<MemoryPipe>();
  Doorbell doorbells[2];
  MemoryLink left(
      a.get(), [&] { return b.get(); }, &doorbells[1]);
  MemoryLink right(
      b.get(), [&] { return a.get(); }, &doorbells[0]);
  stream(left, right, 3'000'001);
  stream(right, left, 1'000'003);
}

}  // namespace
}  // namespace muster::detail
