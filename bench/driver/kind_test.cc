#include "bench/driver/kind.h"

#include <gtest/gtest.h>

namespace muster::detail::bench {
namespace {

TEST(Summary, IsOfAllSamplesAndOfThoseWithAPart) {
  const Series series = {.of = {"ddp", "any"},
                         .samples = {{.us = 3, .parts = {{"repeated", 1}}}, {.us = 1}, {.us = 2}}};
  const Result result = summarise(series);
  EXPECT_DOUBLE_EQ(result.median_us, 2);
  EXPECT_DOUBLE_EQ(result.p10_us, 1.2);
  EXPECT_DOUBLE_EQ(result.p90_us, 2.8);
  EXPECT_TRUE(result.verified);
  EXPECT_EQ(result.repeated_us, 1);
  EXPECT_EQ(series.median_of("loss"), std::nullopt);
}

}  // namespace
}  // namespace muster::detail::bench
