#pragma once

// What the parts of the native engine need around an operation, without an engine: for their tests.

#include <sys/socket.h>

#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "muster/collective/native/operation_context.h"
#include "muster/net/connection.h"

namespace muster::detail::testing {

/// Peers of whom nothing is ever heard, or that have all left.
class QuietPeers : public Peers {
 public:
  explicit QuietPeers(bool have_left) : have_left_(have_left) {}

  bool given_up(int) const override { return have_left_; }
  bool left(int) const override { return have_left_; }
  void wait_gone(int, Deadline) override {}
  std::vector<int> absent(uint64_t) override { return {}; }

 private:
  const bool have_left_;
};

inline std::vector<RankInfo> ranks_for_test(int ranks) {
  std::vector<RankInfo> infos;
  for (int rank = 0; rank < ranks; ++rank)
    infos.push_back({.task = fmt::format("rank {}", rank), .host_name = "h", .pid = 100 + rank});
  return infos;
}

/// One rank of a group that can run operations.
class RankForTest {
 public:
  explicit RankForTest(int ranks, bool others_have_left = false)
      : peers_(others_have_left), ranks_(ranks_for_test(ranks)) {}

  /// Valid as long as the operation and this are.
  OperationContext context(const Operation& operation, uint64_t number = 1) {
    return {operation, operation, number, Deadline::after(std::chrono::seconds(20)),
            error_,    group_,    ranks_, peers_};
  }

 private:
  GroupError error_;
  QuietPeers peers_;
  const std::string group_ = "test";
  const std::vector<RankInfo> ranks_;
};

/// The two ends of a connection.
inline std::array<Connection, 2> connection_pair() {
  std::array<int, 2> fds{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()), 0);
  return {Connection(fds[0], nullptr), Connection(fds[1], nullptr)};
}

inline Operation all_reduce_for_test(std::vector<float>& data) {
  return {.collective = Collective::kAllReduce, .in = data.data(), .out = data.data(), .count = data.size()};
}

}  // namespace muster::detail::testing
