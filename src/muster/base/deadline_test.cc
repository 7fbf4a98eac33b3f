#include "muster/deadline.h"

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

TEST(Deadline, NeverDoesNotExpireAndDoesNotOverflow) {
  const auto never = Deadline::never();
  EXPECT_FALSE(never.expired());
  EXPECT_EQ(never.remaining(), Deadline::Clock::duration::max());
  EXPECT_LT(never.time_point(), Deadline::Clock::time_point::max());
  EXPECT_TRUE(Deadline::after(Deadline::Clock::duration::max()).is_never());
}

TEST(Deadline, ExpiresWhenItsTimeHasCome) {
  EXPECT_TRUE(Deadline::after(0s).expired());
  EXPECT_EQ(Deadline::after(-1s).remaining(), 0s);
  const auto later = Deadline::after(1h);
  EXPECT_FALSE(later.expired());
  EXPECT_GT(later.remaining(), 59min);
}

TEST(Deadline, TheEarlierOfTwoIsTaken) {
  EXPECT_TRUE(Deadline::never().earlier(Deadline::after(0s)).expired());
  EXPECT_TRUE(Deadline::after(0s).earlier(Deadline::never()).expired());
}

}  // namespace
}  // namespace muster::detail
