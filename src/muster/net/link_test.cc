#include "muster/net/link.h"

#include <sys/socket.h>

#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/net/link_test.h"

namespace muster::detail {
namespace {

using testing::stream;

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

}  // namespace
}  // namespace muster::detail
