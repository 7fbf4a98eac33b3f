#include "muster/collective/native/peer_watch.h"

#include <poll.h>

#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/collective/native/native_test.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kLong = 20s;

std::map<int, Connection> one_connection(int to, Connection connection) {
  std::map<int, Connection> connections;
  connections.emplace(to, std::move(connection));
  return connections;
}

// A rank, whose activity the test sets before it begins to listen.
struct Watched {
  Watched(int rank, Connection connection, const Activity& now)
      : Watched(rank, one_connection(1 - rank, std::move(connection)), now) {}

  Watched(int rank, std::map<int, Connection> connections, const Activity& now) {
    state.activity = [this, now] {
      ++looks;
      return now;
    };
    state.log_history = [this] { ++histories; };
    watch = std::make_unique<PeerWatch>(PeerWatch::Options{.group = "test",
                                                           .rank = rank,
                                                           .ranks = testing::ranks_for_test(3),
                                                           .stall_warning = 10ms,
                                                           .on_failure = [] {}},
                                        std::move(connections), state);
  }

  bool fails() const {
    pollfd wait = {.fd = watch->wake_fd(), .events = POLLIN, .revents = 0};
    return poll(&wait, 1, static_cast<int>(kLong / 1ms)) == 1;
  }

  GroupState state;
  std::atomic<int> looks = 0;      // at what it is doing
  std::atomic<int> histories = 0;  // logged
  std::unique_ptr<PeerWatch> watch;
};

Activity in(uint64_t number, const std::string& operation, bool running) {
  return {.number = number, .operation = operation, .running = running, .since = Deadline::Clock::now() - 5s};
}

TEST(PeerWatch, APeerThatLeavesIsNotAFailure) {
  auto ends = testing::connection_pair();
  const Watched self(0, std::move(ends[0]), {});
  auto other = std::make_unique<Watched>(1, std::move(ends[1]), Activity{});
  EXPECT_FALSE(self.watch->left(1));
  other->watch.reset();
  const auto deadline = Deadline::after(kLong);
  self.watch->wait_gone(1, deadline);
  EXPECT_FALSE(deadline.expired());
  EXPECT_TRUE(self.watch->left(1));
  EXPECT_FALSE(self.state.error.raised());
}

TEST(PeerWatch, APeerWhoseConnectionClosesWithoutAGoodbyeHasDied) {
  auto ends = testing::connection_pair();
  const Watched self(0, std::move(ends[0]), {});
  ends[1] = Connection();
  ASSERT_TRUE(self.fails());
  self.watch->wait_gone(1, Deadline::after(kLong));
  EXPECT_FALSE(self.watch->left(1));
  EXPECT_THAT(self.state.error.message(), HasSubstr("rank 1 (host h, pid 101) died"));
}

TEST(PeerWatch, WhoSeesADeathFirstTellsTheOthers) {
  auto between = testing::connection_pair();
  auto to_self = testing::connection_pair();
  auto to_other = testing::connection_pair();
  auto connections = one_connection(1, std::move(between[0]));
  connections.emplace(2, std::move(to_self[0]));
  const Watched self(0, std::move(connections), {});
  connections = one_connection(0, std::move(between[1]));
  connections.emplace(2, std::move(to_other[0]));
  const Watched other(1, std::move(connections), {});
  to_other[1] = Connection();  // the connection to us stays open
  ASSERT_TRUE(self.fails());
  EXPECT_EQ(self.state.error.kind(), GroupError::Kind::kPeerLost);
  EXPECT_THAT(self.state.error.message(), HasSubstr("rank 2 (host h, pid 102) died"));
}

TEST(PeerWatch, WaitsForAPeerThatIsThereAsLongAsItIsTold) {
  auto ends = testing::connection_pair();
  const Watched self(0, std::move(ends[0]), {});
  const Watched other(1, std::move(ends[1]), {});
  const auto deadline = Deadline::after(20ms);
  self.watch->wait_gone(1, deadline);
  EXPECT_TRUE(deadline.expired());
  EXPECT_FALSE(self.watch->left(1));
}

TEST(PeerWatch, AsksWhoHasComeToACollective) {
  auto ends = testing::connection_pair();
  const Watched self(0, std::move(ends[0]), {});
  const Watched other(1, std::move(ends[1]), in(7, "all_reduce(a|b)", false));
  EXPECT_THAT(self.watch->absent(7), IsEmpty());
  EXPECT_THAT(self.watch->absent(8), ElementsAre(1));
}

TEST(PeerWatch, WhoDoesNotAnswerHasNotCome) {
  auto ends = testing::connection_pair();
  const Watched self(0, std::move(ends[0]), {});
  EXPECT_THAT(self.watch->absent(1), ElementsAre(1));
}

TEST(PeerWatch, FindsThatRanksStallInDifferentOperations) {
  auto ends = testing::connection_pair();
  const Watched self(0, std::move(ends[0]), in(4, "barrier", true));
  const Watched other(1, std::move(ends[1]), in(4, "all_gather(float32 x 2)", true));
  ASSERT_TRUE(self.fails());
  EXPECT_THAT(self.state.error.message(), AllOf(HasSubstr("rank 0 (host h, pid 100)"), HasSubstr("barrier"),
                                                HasSubstr("rank 1 (host h, pid 101)"),
                                                HasSubstr("all_gather(float32 x 2)"), HasSubstr("number 4")));
}

TEST(PeerWatch, AStallIsReportedWithTheHistoryOnce) {
  auto ends = testing::connection_pair();
  const Watched self(0, std::move(ends[0]), in(4, "barrier", true));
  const Watched other(1, std::move(ends[1]), in(3, "barrier", false));
  const auto limit = Deadline::after(kLong);
  while (self.histories == 0 && !limit.expired()) std::this_thread::sleep_for(1ms);
  const int before = self.looks;
  while (self.looks < before + 6 && !limit.expired()) std::this_thread::sleep_for(1ms);
  EXPECT_GE(self.looks, before + 6);
  EXPECT_EQ(self.histories, 1);
  EXPECT_EQ(other.histories, 0) << "it is in no operation";
}

TEST(PeerWatch, WhatBreaksTheGroupIsToldToThePeers) {
  auto ends = testing::connection_pair();
  const Watched self(0, std::move(ends[0]), {});
  const Watched other(1, std::move(ends[1]), {});
  self.watch->tell(GroupError::Kind::kAborted, "enough");
  ASSERT_TRUE(other.fails());
  other.watch->wait_gone(0, Deadline::after(kLong));
  EXPECT_EQ(other.state.error.message(), "enough");
}

TEST(PeerWatch, WhatAPeerHasSaidIsKnownOnceItWasHeard) {
  auto ends = testing::connection_pair();
  const Watched self(0, std::move(ends[0]), {});
  const Watched other(1, std::move(ends[1]), {});
  other.watch->tell(GroupError::Kind::kDeadline, std::string(10'000, 'x') + "rank 7 did not come");
  self.watch->hear();
  ASSERT_TRUE(self.state.error.raised());
  EXPECT_EQ(self.state.error.kind(), GroupError::Kind::kDeadline);
  EXPECT_THAT(self.state.error.message(), HasSubstr("rank 7 did not come"));
}

TEST(PeerWatch, NonsenseBreaksTheGroup) {
  auto ends = testing::connection_pair();
  const Watched self(0, std::move(ends[0]), {});
  const std::string nonsense(16, '\xff');
  ends[1].send(nonsense.data(), nonsense.size(), Deadline::after(kLong));
  ASSERT_TRUE(self.fails());
  self.watch->wait_gone(1, Deadline::after(kLong));
  EXPECT_THAT(self.state.error.message(), HasSubstr("nonsense"));
}

}  // namespace
}  // namespace muster::detail
