#include "bench/collective/plot.h"

#include <cmath>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail::bench::collective {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

Point point(int ranks, int64_t bytes, double time) {
  return {.ranks = ranks,
          .bytes = bytes,
          .results = {{.of = {"muster", "arena"}, .median_us = time, .verified = true},
                      {.of = {"muster", "heap"}, .median_us = 2 * time, .verified = true},
                      {.of = {"openmpi", "a<b & c"}, .median_us = 3 * time, .verified = true},
                      {.of = {"mpich", "default"}, .median_us = time / 2, .verified = false}}};
}

const std::vector<Point> kPoints = {point(2, 8, 1), point(2, 1024, 2), point(2, 1 << 20, 150),
                                    point(4, 8, 3)};

TEST(Plot, HasAPanelForEachNumberOfRanksAndALineForEachVariant) {
  const auto svg = plot_svg("allreduce", PlotValue::kTime, kPoints);
  EXPECT_EQ(count(svg, "<g "), 2u);
  EXPECT_EQ(count(svg, "</g>"), 2u);
  EXPECT_EQ(count(svg, "<polyline "), 6u);
  EXPECT_THAT(svg, HasSubstr("allreduce, 2 ranks"));
  EXPECT_THAT(svg, HasSubstr(">muster: heap</text>"));
  EXPECT_THAT(svg, HasSubstr(">openmpi: a&lt;b &amp; c</text>"));
}

TEST(Plot, LeavesOutWhatIsWrong) {
  EXPECT_THAT(plot_svg("allreduce", PlotValue::kTime, kPoints), Not(HasSubstr("mpich")));
}

TEST(Plot, KeepsEveryPointInsideItsPanel) {
  for (const auto value : {PlotValue::kTime, PlotValue::kBusBandwidth}) {
    const auto svg = plot_svg("allreduce", value, kPoints);
    const std::regex circle("cx=\"([0-9.-]+)\" cy=\"([0-9.-]+)\"");
    int seen = 0;
    for (std::sregex_iterator it(svg.begin(), svg.end(), circle); it != std::sregex_iterator();
         ++it, ++seen) {
      EXPECT_GE(std::stod((*it)[1]), 90);
      EXPECT_LE(std::stod((*it)[1]), 660);
      EXPECT_GE(std::stod((*it)[2]), 50);
      EXPECT_LE(std::stod((*it)[2]), 380);
    }
    EXPECT_EQ(seen, 12);
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
  }
}

TEST(Plot, ASingleRankHasNoBusBandwidthToShow) {
  const auto svg = plot_svg("allreduce", PlotValue::kBusBandwidth, {point(1, 8, 1)});
  EXPECT_EQ(count(svg, "<polyline "), 0u);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace muster::detail::bench::collective
