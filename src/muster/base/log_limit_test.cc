#include "muster/base/log_limit.h"

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

TEST(LogLimit, LetsSoManyLinesThroughInAnIntervalAndCountsTheRest) {
  LogLimit limit(3, 10s);
  LogLimit::Time now = LogLimit::Time() + 1h;
  int written = 0;
  for (int i = 0; i < 100; ++i) written += limit.allows(now += 50ms) ? 1 : 0;
  EXPECT_EQ(written, 3);
  EXPECT_TRUE(limit.allows(now += 10s));
  EXPECT_EQ(limit.left_out(), " (97 more like it were not logged)");
  EXPECT_EQ(limit.left_out(), "");
}

TEST(LogLimit, LeavesRareLinesAlone) {
  LogLimit limit(1, 10s);
  LogLimit::Time now = LogLimit::Time() + 1h;
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(limit.allows(now += 11s));
    EXPECT_EQ(limit.left_out(), "");
  }
}

}  // namespace
}  // namespace muster::detail
