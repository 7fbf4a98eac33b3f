#include "muster/shm/thread_pool.h"

#include <atomic>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail {
namespace {

using ::testing::Each;

class ThreadPools : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPools, ::testing::Values(0, 1, 2, 5));

TEST_P(ThreadPools, EveryItemIsDoneOnceBeforeRunReturns) {
  ThreadPool pool(GetParam());
  for (const size_t count : {0, 1, 2, 7, 100}) {
    for (int round = 0; round < 200; ++round) {
      std::vector<int> done(count, 0);  // plain: run() orders what the threads wrote before what comes next
      pool.run(count, [&](size_t item) { ++done[item]; });
      ASSERT_THAT(done, Each(1));
    }
  }
}

TEST_P(ThreadPools, WhatRunsOneAfterTheOtherSeesWhatCameBefore) {
  ThreadPool pool(GetParam());
  std::vector<int> values(64, 1);
  std::vector<int> sums(64, 0);
  for (int round = 0; round < 200; ++round) {
    pool.run(values.size(), [&](size_t i) { sums[i] = values[i] + values[63 - i]; });
    pool.run(values.size(), [&](size_t i) { values[i] = sums[63 - i] - values[i]; });
  }
  EXPECT_THAT(values, Each(1));
}

TEST(ThreadPool, OfOneThreadTheCallerDoesItAllInOrder) {
  ThreadPool pool(1);
  std::vector<size_t> order;
  pool.run(100, [&](size_t item) { order.push_back(item); });
  std::vector<size_t> expected(100);
  std::iota(expected.begin(), expected.end(), size_t{0});
  EXPECT_EQ(order, expected);
}

TEST(ThreadPool, ASingleItemIsTheCallers) {
  ThreadPool pool(4);
  for (int i = 0; i < 100; ++i) {
    std::thread::id who;
    pool.run(1, [&](size_t) { who = std::this_thread::get_id(); });
    ASSERT_EQ(who, std::this_thread::get_id());
  }
}

TEST(ThreadPool, ThreadsWorkAtTheSameTime) {
  ThreadPool pool(3);
  std::atomic<int> inside{0};
  // Each item waits for the others: one thread alone would never end.
  pool.run(3, [&](size_t) {
    for (++inside; inside.load() < 3;) std::this_thread::yield();
  });
  EXPECT_EQ(inside.load(), 3);
}

TEST(ThreadPool, EndsWhileItsThreadsSleepOrLookOut) {
  for (int i = 0; i < 100; ++i) {
    ThreadPool pool(3);
    if (i % 2 == 0) pool.run(3, [](size_t) {});
  }
}

}  // namespace
}  // namespace muster::detail
