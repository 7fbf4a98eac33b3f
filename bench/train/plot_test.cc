#include "bench/train/plot.h"

#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail::bench::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Point point(size_t model, const std::string& optimizer) {
  return {.model = models()[model],
          .optimizer = optimizer,
          .results = {{.subject = "muster", .workers = 1, .samples_per_s = 1000, .p10 = 990, .p90 = 1010},
                      {.subject = "muster", .workers = 2, .samples_per_s = 1900, .p10 = 1800, .p90 = 2000},
                      {.subject = "ddp", .workers = 2, .samples_per_s = 950, .p10 = 900, .p90 = 1000}}};
}

size_t occurrences(const std::string& text, const std::string& what) {
  const std::regex pattern(what);
  return static_cast<size_t>(
      std::distance(std::sregex_iterator(text.begin(), text.end(), pattern), std::sregex_iterator()));
}

TEST(TrainPlot, HasAPanelForEachPointAndABarForEachResult) {
  const auto svg = plot_svg({point(0, "sgd"), point(0, "adam"), point(1, "sgd")});
  EXPECT_EQ(occurrences(svg, "<g "), 3u);
  EXPECT_EQ(occurrences(svg, "<rect x="), 9u);
  EXPECT_THAT(svg, HasSubstr("MLP 784-1024-1024-10, adam: samples/s"));
  EXPECT_THAT(svg, HasSubstr(">muster, 1 worker</text>"));
  EXPECT_THAT(svg, HasSubstr(">ddp, 2 workers</text>"));
}

TEST(TrainPlot, TheLongestBarWithItsSpreadFillsThePanel) {
  const auto svg = plot_svg({point(0, "sgd")});
  EXPECT_THAT(svg, HasSubstr("width=\"332.5\""));  // 1900 of 2000 of 350
  EXPECT_THAT(svg, HasSubstr("x2=\"520.0\""));
}

TEST(TrainPlot, ASubjectThatFailedOrAllThatDidLeaveNoTrace) {
  Point none = point(0, "sgd");
  none.results.clear();
  EXPECT_THAT(plot_svg({none}), Not(HasSubstr("nan")));
  EXPECT_THAT(plot_svg({}), HasSubstr("</svg>"));
}

}  // namespace
}  // namespace muster::detail::bench::train
