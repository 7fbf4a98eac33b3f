#include "bench/collective/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace muster::detail::bench::collective {
namespace {

using ::testing::HasSubstr;

TEST(CollectiveAnswers, ASampleIsThatOfTheSlowestRankAndAllMustBeRight) {
  const auto turn = parse_answers({"ok 1 3 4", "ok 1 5 2"});
  ASSERT_TRUE(turn);
  EXPECT_TRUE(turn->verified);
  ASSERT_EQ(turn->samples.size(), 2u);
  EXPECT_EQ(turn->samples[0].us, 5);
  EXPECT_EQ(turn->samples[1].us, 4);
  EXPECT_FALSE(parse_answers({"ok 1 3", "ok 0 3"})->verified);
  for (const char* line : {"", "ok", "ok 1", "no 1 2", "ok 1 x"})
    EXPECT_EQ(parse_answers({line}), std::nullopt);
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

Result result(std::string subject, std::string variant, double median, bool verified = true) {
  return {.of = {std::move(subject), std::move(variant)},
          .median_us = median,
          .p10_us = median / 2,
          .p90_us = median * 2,
          .verified = verified};
}

const Point kPoint = {
    .ranks = 2,
    .bytes = 1 << 20,
    .results = {result("muster", "arena", 100), result("muster", "heap", 200), result("openmpi", "cma", 300),
                result("openmpi", "copy", 250), result("mpich", "default", 50, /*verified=*/false)}};

std::vector<Variant> variants_of(const Point& point) {
  std::vector<Variant> variants;
  for (const auto& each : point.results) variants.push_back(each.of);
  return variants;
}

TEST(BestOf, IsTheFastestThatIsRight) {
  EXPECT_EQ(best_of(kPoint, "openmpi")->of.variant, "copy");
  EXPECT_EQ(best_of(kPoint, "muster")->median_us, 100);
  EXPECT_EQ(best_of(kPoint, "mpich"), nullptr);
  EXPECT_EQ(best_of(kPoint, "gloo"), nullptr);
}

TEST(CollectiveTable, HasALineForEachPointInLineWithItsHead) {
  auto variants = variants_of(kPoint);
  variants.push_back({"floor", "shared mapping"});
  const Table table("allreduce", variants);
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

TEST(CollectiveTable, ShowsTheTimeOfRepetitionsWhereItIsAnother) {
  Point point = kPoint;
  point.results[0].repeated_us = 60;
  point.results[2].repeated_us = 1;    // not the best of its subject
  point.results[3].repeated_us = 240;  // of 250
  const Table table("allreduce", variants_of(kPoint));
  EXPECT_EQ(table.row(point), table.row(kPoint) + "      repeated        60.0\n");
  point.results[3].repeated_us = 220;
  EXPECT_EQ(table.row(point),
            table.row(kPoint) + "      repeated        60.0                             220.0\n");
}

TEST(CollectiveTable, WithoutTheFirstSubjectThereIsNothingToCompareWith) {
  Point point = kPoint;
  std::erase_if(point.results, [](const Result& each) { return each.of.subject == "muster"; });
  const std::string row = Table("allreduce", variants_of(kPoint)).row(point);
  EXPECT_THAT(row, HasSubstr("    2       1M           -           -         -       250.0 b      -"));
}

TEST(CollectiveTable, ABarrierHasNoBandwidth) {
  const Point point = {.ranks = 4, .bytes = 0, .results = {result("muster", "arena", 1.234)}};
  const Table table("barrier", variants_of(point));
  EXPECT_THAT(table.head(), HasSubstr("ranks    bytes     muster us\n"));
  EXPECT_EQ(table.row(point), "    4        -          1.23\n");
}

TEST(CollectiveJson, HasExactlyTheAgreedFields) {
  EXPECT_EQ(to_json("allreduce", kPoint, kPoint.results[3]),
            R"({"bench":"allreduce","subject":"openmpi","variant":"copy","ranks":2,"bytes":1048576,)"
            R"("median_us":250.0,"p10_us":125.0,"p90_us":500.0,"verified":true})");
  auto repeated = kPoint.results[3];
  repeated.repeated_us = 12.3456;
  EXPECT_THAT(to_json("allreduce", kPoint, repeated), HasSubstr(R"("verified":true,"repeated_us":12.346})"));
  const auto wrong = nlohmann::json::parse(to_json("allreduce", kPoint, kPoint.results[4]));
  EXPECT_EQ(wrong.at("verified"), false);
}

}  // namespace
}  // namespace muster::detail::bench::collective
