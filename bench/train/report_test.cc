#include "bench/train/report.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace muster::detail::bench::train {
namespace {

TEST(TrainAnswers, AreTheSlowestWorkerAndTheMeanOfTheParts) {
  const auto sample = parse_answers(
      {"ok 1.0 2.5 compute 0.6 wait 0.2 update 0.1", "ok 2.0 1.5 compute 0.8 wait 0.4 update 0.3"}, 10);
  ASSERT_TRUE(sample);
  EXPECT_DOUBLE_EQ(sample->us, 0.2e6);
  EXPECT_DOUBLE_EQ(sample->parts.at("loss"), 2);
  EXPECT_DOUBLE_EQ(sample->parts.at("compute_ms"), 70);
  EXPECT_DOUBLE_EQ(sample->parts.at("wait_ms"), 30);
  EXPECT_DOUBLE_EQ(sample->parts.at("update_ms"), 20);
}

TEST(TrainAnswers, MayLackAPart) {
  const auto sample = parse_answers({"ok 1 2.5 compute 0.6", "ok 1 2.5"}, 1);
  ASSERT_TRUE(sample);
  EXPECT_FALSE(sample->parts.contains("compute_ms"));
  EXPECT_FALSE(sample->parts.contains("wait_ms"));
}

TEST(TrainAnswers, MayHaveALossThatIsNoNumber) {
  EXPECT_TRUE(std::isnan(parse_answers({"ok 1 nan"}, 1)->parts.at("loss")));
  EXPECT_TRUE(std::isinf(parse_answers({"ok 1 inf"}, 1)->parts.at("loss")));
}

TEST(TrainAnswers, OfAnotherFormAreNone) {
  for (const char* line :
       {"", "ok", "ok 1", "no 1 2", "ok 0 2", "ok 1 2 compute", "ok 1 2 compute x", "ok x 2"})
    EXPECT_EQ(parse_answers({line}, 1), std::nullopt) << line;
}

TEST(TrainSummary, CountsTheSamplesOfAllWorkers) {
  const auto result = summarise({.of = {"ddp", "a, sgd"},
                                 .workers = 2,
                                 .samples = {{.us = 0.01e6, .parts = {{"loss", 3}, {"compute_ms", 8}}},
                                             {.us = 0.02e6, .parts = {{"loss", 2}, {"compute_ms", 9}}},
                                             {.us = 0.04e6, .parts = {{"loss", 1}, {"compute_ms", 100}}}}},
                                64);
  EXPECT_DOUBLE_EQ(result.samples_per_s, 6400);
  EXPECT_DOUBLE_EQ(result.p10, 3840);
  EXPECT_DOUBLE_EQ(result.p90, 11520);
  EXPECT_DOUBLE_EQ(*result.compute_ms, 9);
  EXPECT_EQ(result.wait_ms, std::nullopt);
  EXPECT_DOUBLE_EQ(result.loss, 1);
}

const Point kPoint = {
    .model = models()[0],
    .optimizer = "sgd",
    .results = {{.subject = "muster", .workers = 1, .samples_per_s = 1000, .p10 = 990, .p90 = 1010},
                {.subject = "muster",
                 .workers = 2,
                 .samples_per_s = 1900,
                 .p10 = 1800,
                 .p90 = 1950,
                 .compute_ms = 50,
                 .wait_ms = 10.125,
                 .update_ms = 7.25,
                 .loss = 2.25,
                 .memory = MemoryUse{.rss = 300, .pss = 200, .own = 100}},
                {.subject = "ddp", .workers = 2, .samples_per_s = 950, .p10 = 900, .p90 = 1000},
                {.subject = "loop", .workers = 1, .samples_per_s = 1100, .p10 = 1000, .p90 = 1200},
                {.subject = "alone", .workers = 2, .samples_per_s = 2090, .p10 = 2000, .p90 = 2100}}};

TEST(TrainPoint, RatioIsThatOfAsManyWorkers) {
  EXPECT_EQ(kPoint.ratio(kPoint.results[1]), std::nullopt);
  EXPECT_DOUBLE_EQ(*kPoint.ratio(kPoint.results[2]), 2);
  EXPECT_DOUBLE_EQ(*kPoint.ratio(kPoint.results[3]), 1000.0 / 1100);
}

TEST(TrainPoint, ScalingIsToOneWorkerOfTheSameSubject) {
  EXPECT_EQ(kPoint.scaling(kPoint.results[0]), std::nullopt);
  EXPECT_DOUBLE_EQ(*kPoint.scaling(kPoint.results[1]), 0.95);
  EXPECT_EQ(kPoint.scaling(kPoint.results[2]), std::nullopt);
  EXPECT_DOUBLE_EQ(*kPoint.scaling(kPoint.results[4]), 0.95);
}

TEST(TrainTable, HasALineForEachResultInLineWithItsHead) {
  EXPECT_EQ(
      to_table({.model = kPoint.model,
                .optimizer = "sgd",
                .results = {kPoint.results[0], kPoint.results[1], kPoint.results[2]}}),
      "a  MLP 784-1024-1024-10, batch 64 a worker, sgd\n"
      "        subject workers samples/s       p10       p90 scaling      x compute ms  wait ms update ms "
      "RSS MiB   PSS   own\n"
      "         muster       1      1000       990      1010       -      -          -        -         - "
      "      -     -     -\n"
      "         muster       2      1900      1800      1950   0.950      -      50.00    10.12      7.25 "
      "    300   200   100\n"
      "            ddp       2       950       900      1000       -   2.00          -        -         - "
      "      -     -     -\n");
}

TEST(TrainJson, HasTheAgreedFields) {
  EXPECT_EQ(to_json(kPoint, kPoint.results[1]),
            R"({"bench":"train","subject":"muster","model":"a","optimizer":"sgd","workers":2,)"
            R"("samples_per_s":1900.0,"p10":1800.0,"p90":1950.0,"compute_ms":50.0,"wait_ms":10.125,)"
            R"("update_ms":7.25,"rss_mib":300.0,"pss_mib":200.0,"own_mib":100.0,"batch":64,"loss":2.25})");
  const auto unknown = nlohmann::json::parse(to_json(kPoint, kPoint.results[2]));
  EXPECT_TRUE(unknown.at("wait_ms").is_null());
  EXPECT_TRUE(unknown.at("pss_mib").is_null());
}

}  // namespace
}  // namespace muster::detail::bench::train
