#include "muster/progress.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ProgressTest : public ::testing::Test {
 protected:
  Progress make(ProgressStyle style, int64_t total) {
    return {style, total, [this](std::string_view text) { lines.emplace_back(text); }, [this] { return now; },
            [this] { return columns; }};
  }
  std::vector<std::string> lines;
  int columns = 0;
  Progress::Clock::time_point now = Progress::Clock::time_point() + 1h;
};

TEST_F(ProgressTest, ALiveLineRewritesItselfAndIsClearedAtTheEnd) {
  {
    auto progress = make(ProgressStyle::kLive, 100);
    now += 10s;
    progress.update(25, "loss 0.5");
    progress.update(26, "loss 0.4");
    EXPECT_THAT(lines, ElementsAre("[=====>              ]  25%  0:30 left  loss 0.5\x1b[K\r"));
    now += 200ms;
    progress.update(27, "loss 0.3");
    EXPECT_EQ(lines.size(), 2u);
  }
  EXPECT_EQ(lines.back(), "\x1b[K\r");
}

TEST_F(ProgressTest, ALiveLineFitsTheTerminalAlsoWhenItIsResized) {
  auto progress = make(ProgressStyle::kLive, 100);
  for (const int width : {50, 40}) {
    columns = width;
    now += 10s;
    progress.update(25, "loss 0.5 and much more that nobody has room for");
    EXPECT_EQ(lines.back().size(), static_cast<size_t>(width) - 1 + 4) << lines.back();  // and the sequences
    EXPECT_THAT(lines.back(), HasSubstr(" left"));
  }
  auto plain = make(ProgressStyle::kPlain, 100);
  now += 10s;
  plain.update(25, std::string(200, 'x'));
  EXPECT_GT(lines.back().size(), 200U);
}

TEST_F(ProgressTest, PlainLinesAreSeldomAndWhole) {
  auto progress = make(ProgressStyle::kPlain, 10);
  progress.update(1, "x");
  EXPECT_THAT(lines, IsEmpty());
  now += 6s;
  progress.update(5, "x");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], EndsWith("\n"));
  EXPECT_THAT(lines[0], HasSubstr(" 50%"));
  progress.finish();
  EXPECT_EQ(lines.size(), 1u);
}

TEST_F(ProgressTest, OffIsSilentAndNoTotalHasNoBar) {
  auto off = make(ProgressStyle::kOff, 10);
  now += 1h;
  off.update(5, "x");
  EXPECT_THAT(lines, IsEmpty());
  auto endless = make(ProgressStyle::kLive, 0);
  endless.update(5, "x");
  EXPECT_THAT(lines.at(0), ::testing::StartsWith("x"));  // no bar
}

}  // namespace
}  // namespace muster::detail
