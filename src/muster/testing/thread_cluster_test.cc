#include "muster/testing/thread_cluster.h"

#include <atomic>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail::testing {
namespace {

using namespace std::chrono_literals;

TEST(ThreadCluster, EveryRankRunsAndItsErrorIsKept) {
  std::atomic<int> sum = 0;
  const auto errors = ThreadCluster(4, 30s).run([&](int rank) {
    sum += rank;
    if (rank == 2) throw std::runtime_error("rank 2 has a reason");
  });
  EXPECT_EQ(sum, 6);
  EXPECT_THAT(errors, ::testing::ElementsAre("", "", "rank 2 has a reason", ""));
}

TEST(ThreadClusterDeathTest, AHangNamesItsRanks) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(ThreadCluster(2, 100ms).run([](int rank) {
    while (rank == 1) std::this_thread::sleep_for(1s);
  }),
               "ranks 1 did not end");
}

}  // namespace
}  // namespace muster::detail::testing
