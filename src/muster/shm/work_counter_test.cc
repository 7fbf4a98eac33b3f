#include "muster/shm/work_counter.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail {
namespace {

using ::testing::Each;

TEST(WorkCounter, GivesEachPieceOnceAndTellsWhenAllAreDone) {
  constexpr uint64_t kPieces = 10'000;
  constexpr uint64_t kRounds = 3;
  WorkCounter counter;
  std::vector<int> taken(kPieces * kRounds);  // each of whoever has claimed it
  std::atomic<int> last = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (uint64_t end = kPieces; end <= kPieces * kRounds; end += kPieces) {
        while (const auto piece = counter.claim(end)) {
          ++taken[*piece];
          if (counter.finish(end)) ++last;
        }
        while (!counter.is_done(end)) std::this_thread::yield();
        int sum = 0;
        for (uint64_t piece = 0; piece < end; ++piece) sum += taken[piece];
        EXPECT_GE(sum, static_cast<int>(end));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(taken, Each(1));
  EXPECT_EQ(last, static_cast<int>(kRounds));
}

TEST(WorkCounter, APieceThatIsNotReadyIsNobodys) {
  WorkCounter counter;
  const auto is_ready = [](uint64_t piece) { return piece < 2; };
  EXPECT_EQ(counter.claim(3, is_ready), 0U);
  EXPECT_EQ(counter.claim(3, is_ready), 1U);
  EXPECT_EQ(counter.claim(3, is_ready), std::nullopt);
  EXPECT_FALSE(counter.is_claimed(3));
  EXPECT_EQ(counter.claim(3), 2U);
  EXPECT_TRUE(counter.is_claimed(3));
  EXPECT_FALSE(counter.is_done(3));
  counter.reset();
  EXPECT_EQ(counter.claim(3), 0U);
}

}  // namespace
}  // namespace muster::detail
