#include "muster/net/reserved_port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

bool can_listen(int port, bool reuse) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int on = reuse ? 1 : 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool ok = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && listen(fd, 1) == 0;
  close(fd);
  return ok;
}

TEST(ReservedPort, AServerCanListenOnItAndNobodyElseGetsIt) {
  const ReservedPort reserved("127.0.0.1");
  EXPECT_TRUE(can_listen(reserved.port(), /*reuse=*/true));
  EXPECT_FALSE(can_listen(reserved.port(), /*reuse=*/false));
}

TEST(ReservedPort, ManyAreAllDifferent) {
  std::vector<ReservedPort> ports;
  std::set<int> numbers;
  for (int i = 0; i < 200; ++i) {
    ports.emplace_back("127.0.0.1");
    numbers.insert(ports.back().port());
  }
  EXPECT_EQ(numbers.size(), 200u);
}

TEST(ReservedPort, AnAddressThatIsNotOursIsAnError) {
  EXPECT_THROW(ReservedPort("192.0.2.1"), SystemError);
  EXPECT_THROW(ReservedPort("not-numeric"), SystemError);
}

}  // namespace
}  // namespace muster::detail
