#include "bench/driver/numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;

TEST(Sizes, ARangeDoublesUpToItsEnd) {
  EXPECT_THAT(parse_sizes("8:64"), ElementsAre(8, 16, 32, 64));
  EXPECT_THAT(parse_sizes("3:20"), ElementsAre(3, 6, 12));
  const auto sizes = parse_sizes("8:256M");
  EXPECT_EQ(sizes.size(), 26u);
  EXPECT_EQ(sizes.back(), 256 << 20);
}

TEST(Sizes, AListIsTakenInOrderAndEachOnce) {
  EXPECT_THAT(parse_sizes("64K,1M,25M"), ElementsAre(64 << 10, 1 << 20, 25 << 20));
  EXPECT_THAT(parse_sizes("1G,8:16,8"), ElementsAre(8, 16, 1 << 30));
}

TEST(Sizes, MistakesAreNamed) {
  for (const char* text :
       {"", "8:", ":8", "0", "-8", "8X", "K", "1.5M", "8:16:32", "64:8", "8,,16", "2000000G"}) {
    EXPECT_THROW(parse_sizes(text), InvalidArgument) << text;
  }
  try {
    parse_sizes("8,12Q");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("'12Q' is not a number of bytes"));
  }
}

TEST(Sizes, AreShownShortOnlyWhereThatIsExact) {
  EXPECT_EQ(format_size(8), "8");
  EXPECT_EQ(format_size(1000), "1000");
  EXPECT_EQ(format_size(64 << 10), "64K");
  EXPECT_EQ(format_size(25 << 20), "25M");
  EXPECT_EQ(format_size(int64_t{3} << 30), "3G");
  EXPECT_EQ(format_size((1 << 20) + 1024), "1025K");
}

TEST(Answers, AreTheNumbersAfterOk) {
  EXPECT_THAT(parse_answer("ok 1 2.5"), Optional(ElementsAre(1, 2.5)));
  EXPECT_THAT(parse_answer("ok"), Optional(ElementsAre()));
  for (const char* line : {"", "no 1", "ok x", "ok 1 x", "ok  1"})
    EXPECT_EQ(parse_answer(line), std::nullopt) << line;
}

TEST(Percentile, LiesBetweenTheNeighbours) {
  EXPECT_DOUBLE_EQ(percentile({7}, 0.9), 7);
  EXPECT_DOUBLE_EQ(percentile({3, 1, 2}, 0.5), 2);
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(percentile({0, 10, 20, 30, 40}, 0.1), 4);
  EXPECT_DOUBLE_EQ(percentile({0, 10, 20, 30, 40}, 0.9), 36);
  EXPECT_DOUBLE_EQ(percentile({1, 2, 3}, 1), 3);
}

TEST(TimedAnswers, SamplesAreThoseOfAllWorkersAndNotOfServers) {
  EXPECT_THAT(parse_samples({"ok 1 2.5", "ok 3", "ok"}, 2), Optional(ElementsAre(1, 2.5, 3)));
}

TEST(TimedAnswers, AllWorkersMustFindTheirResultsRight) {
  EXPECT_EQ(parse_verification({"ok 1", "ok 1", "ok"}, 2), true);
  EXPECT_EQ(parse_verification({"ok 1", "ok 0", "ok"}, 2), false);
}

TEST(TimedAnswers, OfAnotherFormAreNone) {
  for (const char* line : {"", "ok", "no 1", "ok x", "ok 1 x"}) {
    EXPECT_EQ(parse_samples({line}, 1), std::nullopt) << line;
    EXPECT_EQ(parse_verification({line}, 1), std::nullopt) << line;
  }
}

}  // namespace
}  // namespace muster::detail::bench
