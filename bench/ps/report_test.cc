#include "bench/ps/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail::bench::ps {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

Result result(const std::string& subject, double median_us, bool verified = true) {
  return {.of = {subject, "any"},
          .median_us = median_us,
          .p10_us = median_us / 2,
          .p90_us = median_us * 2,
          .verified = verified};
}

Case case_of(const std::string& transport, int variables, int64_t bytes) {
  return {.transport = transport, .workers = 1, .servers = 1, .variables = variables, .bytes = bytes};
}

Point point_of(const Case& of, const std::vector<Result>& results) {
  return {.of = of, .results = results};
}

const Point kPoint =
    point_of(case_of("shm", 1, 16 << 20),
             {result("muster", 2000), result("grpc-unary", 20000), result("grpc-stream", 16000),
              result("torch-rpc", 3000), result("floor", 1500)});

TEST(PsPoint, TheFasterOfTheTwoCountsForGrpc) {
  EXPECT_EQ(kPoint.median_us("grpc"), 16000);
  EXPECT_EQ(kPoint.median_us("grpc-unary"), 20000);
  EXPECT_EQ(kPoint.ratio("grpc"), 8);
  EXPECT_EQ(kPoint.ratio("floor"), 0.75);
  EXPECT_EQ(kPoint.median_us("zmq"), std::nullopt);
}

TEST(PsPoint, ABaselineStandsAtTheEndOfItsRow) {
  EXPECT_THAT(table_row(kPoint), Not(HasSubstr("baseline")));
  Point point = kPoint;
  point.results.push_back(result("baseline", 4000));
  EXPECT_THAT(table_row(point), EndsWith("  baseline 4000 us, x 2.00\n"));
}

TEST(PsPoint, WrongResultsDoNotCount) {
  const auto point = point_of(
      kPoint.of, {result("muster", 1000), result("grpc-unary", 5000), result("grpc-stream", 10, false)});
  EXPECT_EQ(point.ratio("grpc"), 5);
  const auto wrong = point_of(kPoint.of, {result("muster", 1, false), result("floor", 2)});
  EXPECT_EQ(wrong.ratio("floor"), std::nullopt);
  EXPECT_EQ(bars({wrong}), "");
}

TEST(PsTable, HasALineForEachPointInLineWithItsHead) {
  auto some =
      point_of(case_of("shm", 1000, 4096),
               {result("muster", 812.25), result("grpc-stream", 55, false), result("torch-rpc", 16245)});
  some.of.workers = 2;
  some.of.servers = 2;
  EXPECT_EQ(
      table_head() + table_row(kPoint) + table_row(some),
      "workers servers variables  bytes      muster us  grpc-unary us grpc-stream us   torch-rpc us       "
      "floor us      x grpc x torch-rpc     x floor\n"
      "      1       1         1    16M           2000          20000          16000           3000       "
      "    1500        8.00        1.50        0.75\n"
      "      2       2      1000     4K          812.2              -          wrong          16245       "
      "       -           -        20.0           -\n");
}

TEST(PsJson, HasTheAgreedFields) {
  EXPECT_EQ(
      to_json(kPoint, kPoint.results[2]),
      R"({"bench":"ps","subject":"grpc-stream","transport":"shm","workers":1,"servers":1,"variables":1,)"
      R"("bytes":16777216,"median_us":16000.0,"p10_us":8000.0,"p90_us":32000.0,"verified":true})");
}

TEST(PsBars, SayWhatIsMetOfWhatWasMeasured) {
  EXPECT_EQ(bars({kPoint}),
            "  shm      16M  grpc        8.00  at least 6    met\n"
            "  shm      16M  torch-rpc   1.50  at least 2    not met\n"
            "  shm      16M  floor       0.75  at least 0.7  met\n");
}

TEST(PsBars, AThousandVariablesAreComparedWithOneOfAsManyBytes) {
  const auto thousand = point_of(case_of("tcp", 1000, 4 << 10), {result("muster", 2100)});
  const auto one = point_of(case_of("tcp", 1, 4 << 20), {result("muster", 1000)});
  EXPECT_EQ(bars({one, thousand}), "  tcp  1000x4K  1x4M        2.10  at most  2    not met\n");
  EXPECT_EQ(bars({thousand}), "");
}

TEST(PsBars, AreThoseOfOneWorkerAndOneServer) {
  Point two = kPoint;
  two.of.servers = 2;
  EXPECT_EQ(bars({two}), "");
}

}  // namespace
}  // namespace muster::detail::bench::ps
