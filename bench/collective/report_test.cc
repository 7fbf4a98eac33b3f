#include "bench/collective/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "muster/base/error.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST(Sizes, AreRoundedUpToWholeElementsOfEveryRank) {
  EXPECT_EQ(round_up("allreduce", 8, 3), 8);
  EXPECT_EQ(round_up("broadcast", 6, 3), 8);
  EXPECT_EQ(round_up("allgather", 8, 3), 12);
  EXPECT_EQ(round_up("reducescatter", 1024, 3), 1032);
  EXPECT_EQ(round_up("alltoall", 48, 3), 48);
}

TEST(Percentile, LiesBetweenTheNeighbours) {
  EXPECT_DOUBLE_EQ(percentile({7}, 0.9), 7);
  EXPECT_DOUBLE_EQ(percentile({3, 1, 2}, 0.5), 2);
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(percentile({0, 10, 20, 30, 40}, 0.1), 4);
  EXPECT_DOUBLE_EQ(percentile({0, 10, 20, 30, 40}, 0.9), 36);
  EXPECT_DOUBLE_EQ(percentile({1, 2, 3}, 1), 3);
}

TEST(BusFactor, IsThatOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor("allreduce", 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor("reducescatter", 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor("allgather", 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor("alltoall", 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor("broadcast", 4), 1);
  EXPECT_DOUBLE_EQ(bus_factor("reduce", 4), 1);
  EXPECT_DOUBLE_EQ(bus_factor("barrier", 4), 0);
  EXPECT_DOUBLE_EQ(bus_factor("allreduce", 1), 0);
}

BenchResult result(std::string subject, std::string variant, double median, bool verified = true) {
  return {.of = {std::move(subject), std::move(variant)},
          .median_us = median,
          .p10_us = median / 2,
          .p90_us = median * 2,
          .verified = verified};
}

const BenchPoint kPoint = {
    .ranks = 2,
    .bytes = 1 << 20,
    .results = {result("muster", "arena", 100), result("muster", "heap", 200), result("openmpi", "cma", 300),
                result("openmpi", "copy", 250), result("mpich", "default", 50, /*verified=*/false)}};

std::vector<BenchVariant> variants_of(const BenchPoint& point) {
  std::vector<BenchVariant> variants;
  for (const auto& each : point.results) variants.push_back(each.of);
  return variants;
}

TEST(BestOf, IsTheFastestThatIsRight) {
  EXPECT_EQ(best_of(kPoint, "openmpi")->of.variant, "copy");
  EXPECT_EQ(best_of(kPoint, "muster")->median_us, 100);
  EXPECT_EQ(best_of(kPoint, "mpich"), nullptr);
  EXPECT_EQ(best_of(kPoint, "gloo"), nullptr);
}

TEST(BenchTable, HasALineForEachPointInLineWithItsHead) {
  auto variants = variants_of(kPoint);
  variants.push_back({"floor", "shared mapping"});
  const BenchTable table("allreduce", variants);
  EXPECT_EQ(table.head() + table.row(kPoint),
            "   muster  a arena   b heap\n"
            "  openmpi  a cma   b copy\n"
            "    mpich  default\n"
            "    floor  shared mapping\n"
            "\n"
            "ranks    bytes     muster us  alg GB/s  bus GB/s    openmpi us      x      mpich us      x      "
            "floor us      x\n"
            "    2       1M       100.0 a     10.49     10.49       250.0 b   2.50         wrong      -      "
            "       -      -\n");
}

TEST(BenchTable, WithoutTheFirstSubjectThereIsNothingToCompareWith) {
  BenchPoint point = kPoint;
  std::erase_if(point.results, [](const BenchResult& each) { return each.of.subject == "muster"; });
  const std::string row = BenchTable("allreduce", variants_of(kPoint)).row(point);
  EXPECT_THAT(row, HasSubstr("    2       1M           -           -         -       250.0 b      -"));
}

TEST(BenchTable, ABarrierHasNoBandwidth) {
  const BenchPoint point = {.ranks = 4, .bytes = 0, .results = {result("muster", "arena", 1.234)}};
  const BenchTable table("barrier", variants_of(point));
  EXPECT_THAT(table.head(), HasSubstr("ranks    bytes     muster us\n"));
  EXPECT_EQ(table.row(point), "    4        -          1.23\n");
}

TEST(BenchJson, HasExactlyTheAgreedFields) {
  EXPECT_EQ(to_json("allreduce", kPoint, kPoint.results[3]),
            R"({"bench":"allreduce","subject":"openmpi","variant":"copy","ranks":2,"bytes":1048576,)"
            R"("median_us":250.0,"p10_us":125.0,"p90_us":500.0,"verified":true})");
  const auto wrong = nlohmann::json::parse(to_json("allreduce", kPoint, kPoint.results[4]));
  EXPECT_EQ(wrong.at("verified"), false);
}

}  // namespace
}  // namespace muster
