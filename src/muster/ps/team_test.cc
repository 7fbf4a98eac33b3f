#include "muster/ps/team.h"

#include <atomic>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::Each;

class Teams : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Threads, Teams, ::testing::Values(0, 1, 2, 5));

TEST_P(Teams, EveryPieceIsDoneOnceBeforeRunReturns) {
  Team team(GetParam());
  for (const size_t count : {0, 1, 2, 7, 100}) {
    for (int round = 0; round < 200; ++round) {
      std::vector<int> done(count, 0);  // plain: run() orders what the helpers wrote before what comes next
      team.run(count, [&](size_t piece) { ++done[piece]; });
      ASSERT_THAT(done, Each(1));
    }
  }
}

TEST_P(Teams, WhatRunsOneAfterTheOtherSeesWhatCameBefore) {
  Team team(GetParam());
  std::vector<int> values(64, 1);
  std::vector<int> sums(64, 0);
  for (int round = 0; round < 200; ++round) {
    team.run(values.size(), [&](size_t i) { sums[i] = values[i] + values[63 - i]; });
    team.run(values.size(), [&](size_t i) { values[i] = sums[63 - i] - values[i]; });
  }
  EXPECT_THAT(values, Each(1));
}

TEST(Team, WithoutHelpersTheCallerDoesItAllInOrder) {
  Team team(1);
  std::vector<size_t> order;
  team.run(100, [&](size_t piece) { order.push_back(piece); });
  std::vector<size_t> expected(100);
  std::iota(expected.begin(), expected.end(), size_t{0});
  EXPECT_EQ(order, expected);
}

TEST(Team, ASinglePieceIsTheCallers) {
  Team team(4);
  for (int i = 0; i < 100; ++i) {
    std::thread::id who;
    team.run(1, [&](size_t) { who = std::this_thread::get_id(); });
    ASSERT_EQ(who, std::this_thread::get_id());
  }
}

TEST(Team, HelpersHelp) {
  Team team(3);
  std::atomic<int> inside{0};
  // Each piece waits for the others: one thread alone would never end.
  team.run(3, [&](size_t) {
    for (++inside; inside.load() < 3;) std::this_thread::yield();
  });
  EXPECT_EQ(inside.load(), 3);
}

TEST(Team, EndsWhileHelpersSleepOrLookOut) {
  for (int i = 0; i < 100; ++i) {
    Team team(3);
    if (i % 2 == 0) team.run(3, [](size_t) {});
  }
}

}  // namespace
}  // namespace muster
