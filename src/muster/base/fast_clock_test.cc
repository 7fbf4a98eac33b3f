#include "muster/base/fast_clock.h"

#include <thread>

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

// Each reading of the counter lies between two of the clock, so its time must, but for what conversion loses.
TEST(TickClock, KnowsWhenTheCounterHadAValue) {
  const TickClock clock;
  std::this_thread::sleep_for(50ms);
  const auto before = Deadline::Clock::now();
  const uint64_t ticks = TickClock::ticks();
  const auto after = Deadline::Clock::now();
  std::this_thread::sleep_for(100ms);
  const auto time = clock.time_of(ticks);
  EXPECT_GT(time, before - 5ms);
  EXPECT_LT(time, after + 5ms);
}

TEST(TickClock, DoesNotGoBack) {
  const TickClock clock;
  const uint64_t first = TickClock::ticks();
  const uint64_t second = TickClock::ticks();
  EXPECT_LE(first, second);
  EXPECT_LE(clock.time_of(first), Deadline::Clock::now());
}

TEST(CoarseNow, IsTheTimeOfTheLastTick) {
  const auto before = Deadline::Clock::now();
  const auto coarse = coarse_now();
  const auto after = Deadline::Clock::now();
  EXPECT_LE(coarse, after);
  EXPECT_GT(coarse, before - 100ms);  // ticks come every 1 to 10 ms
}

}  // namespace
}  // namespace muster::detail
