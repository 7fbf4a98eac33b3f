#include "muster/collective/native/link_executor.h"

#include <atomic>
#include <map>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/collective/native/native_test.h"
#include "muster/testing/thread_cluster.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using testing::all_reduce_for_test;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::RankForTest;
using testing::ThreadCluster;

constexpr int kRanks = 3;
constexpr SpinPolicy kSpinPolicy = {.spins = 40, .yields = 8};

class CountingLink : public TcpLink {
 public:
  using TcpLink::TcpLink;

  size_t try_receive(std::span<const iovec> parts) override {
    const size_t received = TcpLink::try_receive(parts);
    if (received == 0) ++in_vain;
    return received;
  }

  std::atomic<int> in_vain = 0;  // how often there was nothing
};

// Ranks as threads, with a link over a socket between every two.
class LinkExecutorTest : public ::testing::Test {
 protected:
  LinkExecutorTest() {
    for (int a = 0; a < kRanks; ++a) {
      for (int b = a + 1; b < kRanks; ++b) {
        auto ends = testing::connection_pair();
        links_[{a, b}] = link_over(std::move(ends[0]));
        links_[{b, a}] = link_over(std::move(ends[1]));
      }
    }
  }

  // Segments so small that even short buffers go in many.
  LinkExecutor executor(int rank) {
    return LinkExecutor({.rank = rank,
                         .link = [this, rank](int peer, const OperationContext&) -> Link& {
                           return *links_.at({rank, peer});
                         },
                         .spin_policy = kSpinPolicy,
                         .segment = 64});
  }

  /// Until `rank` has found nothing from `peer` so often that it has looked for the reason.
  void wait_until_it_waits(int rank, int peer) {
    while (links_.at({rank, peer})->in_vain < kSpinPolicy.spins + kSpinPolicy.yields + 2)
      std::this_thread::yield();
  }

  static Stage stage_of(Algorithm algorithm, int rank, int& blocks) {
    const Plan plan = make_plan(Collective::kAllReduce, algorithm, rank, Topology::one_rank_per_host(kRanks));
    blocks = plan.blocks;
    return plan.stages.front();
  }

  static void all_reduce(LinkExecutor& executor, RankForTest& self, Algorithm algorithm, int rank,
                         std::vector<float>& data) {
    int blocks = 0;
    const Stage stage = stage_of(algorithm, rank, blocks);
    const Operation operation = all_reduce_for_test(data);
    executor.run(self.context(operation), stage, BlockLayout(data.size(), blocks), data.data(), data.data());
  }

  void close_links_of(int rank) {
    for (auto& [ends, link] : links_) {
      if (ends.first == rank) link.reset();
    }
  }

 private:
  static std::unique_ptr<CountingLink> link_over(Connection connection) {
    std::vector<Connection> connections;
    connections.push_back(std::move(connection));
    return std::make_unique<CountingLink>(std::move(connections));
  }

  std::map<std::pair<int, int>, std::unique_ptr<CountingLink>> links_;
};

TEST_F(LinkExecutorTest, EveryRankEndsWithTheSumWhateverTheLength) {
  const auto errors = ThreadCluster(kRanks, 60s).run([&](int rank) {
    RankForTest self(kRanks);
    LinkExecutor own = executor(rank);
    for (const auto algorithm : {Algorithm::kRing, Algorithm::kDoubling, Algorithm::kHalvingDoubling}) {
      for (const size_t count : {0U, 1U, 2U, 3U, 17U, 1000U, 50000U}) {
        std::vector<float> data(count);
        for (size_t i = 0; i < count; ++i)
          data[i] = static_cast<float>((static_cast<size_t>(rank) + 1) * (i % 1000));
        all_reduce(own, self, algorithm, rank, data);
        for (size_t i = 0; i < count; ++i) {
          if (data[i] != static_cast<float>(6 * (i % 1000)))  // 1 + 2 + 3
            raise<DataLoss>("{} of {}: element {} is {}", name_of(algorithm), count, i, data[i]);
        }
      }
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_F(LinkExecutorTest, DifferentCallsAreFoundBeforeAnElementIsTouched) {
  std::vector<std::vector<float>> data = {std::vector<float>(10, 1), std::vector<float>(11, 1),
                                          std::vector<float>(11, 1)};
  const auto errors = ThreadCluster(kRanks, 60s).run([&](int rank) {
    RankForTest self(kRanks);
    LinkExecutor own = executor(rank);
    // Between the ranks 0 and 1 only: the third would wait for them.
    if (rank == 2) return;
    Stage stage;
    stage.steps = {{.sends = {{1 - rank, {0, 1}}}, .receives = {{1 - rank, {0, 1}, Action::kReduce, true}}}};
    auto& mine = data[static_cast<size_t>(rank)];
    const Operation operation = all_reduce_for_test(mine);
    own.run(self.context(operation), stage, BlockLayout(mine.size(), 1), mine.data(), mine.data());
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(errors[static_cast<size_t>(rank)],
                AllOf(HasSubstr("float32 x 10,"), HasSubstr("float32 x 11,")));
  }
  for (const auto& values : data) EXPECT_THAT(values, Each(1.0F));
}

// Over a slow network what a rank sent may still come long after its goodbye.
TEST_F(LinkExecutorTest, WhatARankSentBeforeItLeftIsWaitedFor) {
  const auto errors = ThreadCluster(kRanks, 60s).run([&](int rank) {
    RankForTest self(kRanks, /*others_have_left=*/true);
    LinkExecutor own = executor(rank);
    std::vector<float> data(1000, 1);
    if (rank == 2) wait_until_it_waits(0, 2);
    all_reduce(own, self, Algorithm::kRing, rank, data);
    EXPECT_THAT(data, Each(3.0F));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_F(LinkExecutorTest, ALinkThatBreaksNamesItsRank) {
  close_links_of(2);
  RankForTest self(kRanks);
  LinkExecutor own = executor(0);
  std::vector<float> data(1000);
  try {
    all_reduce(own, self, Algorithm::kRing, 0, data);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const PeerLost& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 2 (host h, pid 102)"));
  }
}

}  // namespace
}  // namespace muster::detail
