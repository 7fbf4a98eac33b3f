#include "bench/session/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail::bench::session {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Result result(const std::string& subject, double median_us, bool verified = true) {
  return {.of = {subject, "any"},
          .median_us = median_us,
          .p10_us = median_us / 2,
          .p90_us = median_us * 2,
          .verified = verified};
}

Point point_of(const std::string& name, const std::string& of, const std::vector<Result>& results,
               double items = 0, const std::string& unit = "") {
  return {.of = {.name = name, .of = of, .items = items, .unit = unit}, .results = results};
}

const Point kTransfer = point_of("transfer", "67108864",
                                 {result("muster", 4000), result("grpc", 80000), result("torch-rpc", 6000)});
const Point kEmptyNodes = point_of("executor", "16x1024 data", {result("muster", 16384)}, 16384, "nodes");

TEST(SessionPoint, WrongResultsDoNotCount) {
  EXPECT_EQ(kTransfer.ratio("grpc", "muster"), 20);
  const auto wrong = point_of("step", "1", {result("muster", 100, false), result("grpc", 200)});
  EXPECT_EQ(wrong.ratio("grpc", "muster"), std::nullopt);
  EXPECT_THAT(table_rows(wrong), HasSubstr("wrong"));
  EXPECT_EQ(bars({wrong}), "");
}

TEST(SessionPoint, CountsWhatARunHas) {
  EXPECT_EQ(kEmptyNodes.per_second("muster"), 1e6);
  EXPECT_EQ(kTransfer.per_second("muster"), std::nullopt);
}

TEST(SessionTable, HasALineForEachSubjectInLineWithItsHead) {
  EXPECT_EQ(table_head() + table_rows(kTransfer) + table_rows(kEmptyNodes),
            "case                         subject         median us       p10 us       p90 us             "
            "                x\n"
            "transfer 64M                 muster               4000         2000         8000             "
            "         -      -\n"
            "transfer 64M                 grpc                80000        40000       160000             "
            "         -   20.0\n"
            "transfer 64M                 torch-rpc            6000         3000        12000             "
            "         -   1.50\n"
            "executor 16x1024 data        muster              16384         8192        32768          "
            "1.00M nodes/s      -\n");
}

TEST(SessionJson, HasTheAgreedFields) {
  EXPECT_EQ(to_json(kTransfer, kTransfer.results[1]),
            R"({"bench":"session","case":"transfer","of":"67108864","subject":"grpc","median_us":80000.0,)"
            R"("p10_us":40000.0,"p90_us":160000.0,"per_s":null,"unit":null,"verified":true})");
  EXPECT_THAT(to_json(kEmptyNodes, kEmptyNodes.results[0]), HasSubstr(R"("per_s":1000000.0,"unit":"nodes")"));
}

TEST(SessionBars, SayWhatIsMetOfWhatWasMeasured) {
  EXPECT_EQ(
      bars({kTransfer, kEmptyNodes}),
      "  transfer 64M                 times as fast as grpc                20.0  at least 5      met\n"
      "  transfer 64M                 times as fast as torch-rpc           1.50  at least 2      not met\n"
      "  executor 16x1024 data        million nodes a second               1.00  at least 5      not met\n");
  EXPECT_EQ(bars({point_of("transfer", "4096", {result("muster", 1), result("grpc", 2)})}), "");
}

TEST(SessionBars, ATimeIsInMilliseconds) {
  EXPECT_EQ(
      bars({point_of("step", "2", {result("muster", 250), result("grpc", 100)})}),
      "  step 2                       ms                                   0.25  at most  0.3    met\n");
}

TEST(SessionBars, ASessionMayTakeLongerThanALoopButNotToTrain) {
  EXPECT_THAT(bars({point_of("operators", "", {result("muster", 120), result("loop", 100)})}),
              HasSubstr("1.20  at most  1.3    met"));
  EXPECT_THAT(bars({point_of("cnn", "", {result("muster", 120), result("loop", 100)})}),
              HasSubstr("1.20  at most  1      not met"));
}

TEST(SessionBars, APipelineIsComparedWithOneTask) {
  const auto text = bars(
      {point_of("pipeline", "", {result("zero-bubble", 100), result("1f1b", 110), result("one-task", 180)})});
  EXPECT_THAT(text, HasSubstr("pipeline 1f1b                times as fast as one-task            1.64"));
  EXPECT_THAT(text, HasSubstr("pipeline zero-bubble         times as fast as one-task            1.80"));
}

TEST(SessionBars, TenTimesTheNodesMayTakeTwelveTimesAsLong) {
  const auto small = point_of("graph", "10000", {result("muster", 1e5)});
  const auto large = point_of("graph", "100000", {result("muster", 1.3e6)});
  EXPECT_THAT(bars({small, large}),
              HasSubstr("times the time of 10000 nodes        13.0  at most  12     not met"));
  EXPECT_THAT(bars({large}), Not(HasSubstr("10000 nodes")));
}

TEST(SessionBars, ReplicasNeedNotBeAsFastAsPsSync) {
  EXPECT_THAT(bars({point_of("replicas", "", {result("muster", 100), result("ps-sync", 75)})}),
              HasSubstr("of the samples/s of ps-sync          0.75  at least 0.7    met"));
}

}  // namespace
}  // namespace muster::detail::bench::session
