#include "muster/graph/pipeline_schedule.h"

#include <array>
#include <map>
#include <random>
#include <string>
#include <tuple>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"

namespace muster::detail {
namespace {

constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B,
                                           PipelineSchedule::kZeroBubble};
constexpr double kNear = 1e-9;

PipelineTimetable simulate_equal(size_t stages, size_t micro_batches, PipelineSchedule schedule,
                                 StageTimes times = {}) {
  return simulate_pipeline(std::vector<StageTimes>(stages, times), micro_batches, schedule);
}

std::string order_of(const std::vector<PipelinePass>& passes) {
  std::string text;
  for (const auto& pass : passes) {
    constexpr char kNames[] = {'F', 'B', 'W'};
    text +=
        fmt::format("{}{}{}", text.empty() ? "" : " ", kNames[static_cast<int>(pass.kind)], pass.micro_batch);
  }
  return text;
}

TEST(PipelineSchedule, WithEqualStagesTheBubbleIsThatOfTheFormula) {
  for (const auto schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B}) {
    for (size_t stages = 1; stages <= 8; ++stages) {
      for (const size_t micro_batches : {1, 2, 3, 5, 8, 16, 33}) {
        for (const double backward : {1.0, 2.0, 2.7}) {
          const auto table = simulate_equal(
              stages, micro_batches, schedule,
              {.forward = 1, .backward_inputs = backward / 2, .backward_weights = backward / 2});
          EXPECT_NEAR(table.bubble(), bubble_by_formula(stages, micro_batches), kNear)
              << stages << " stages, " << micro_batches << " micro-batches";
          EXPECT_NEAR(table.duration, static_cast<double>(micro_batches + stages - 1) * (1 + backward), 1e-6);
        }
      }
    }
  }
}

TEST(PipelineSchedule, ZeroBubbleLeavesAThirdOfTheIdleTime) {
  const auto share_left = [](size_t stages) {
    const auto idle = [&](PipelineSchedule schedule) {
      const auto table = simulate_equal(stages, 4 * stages, schedule);
      return table.bubble() * table.duration;
    };
    return idle(PipelineSchedule::kZeroBubble) / idle(PipelineSchedule::k1F1B);
  };
  for (const size_t stages : {2, 3, 4, 8}) EXPECT_NEAR(share_left(stages), 1.0 / 3, kNear) << stages;
}

TEST(PipelineSchedule, APassWaitsForWhatItNeedsAndStagesDoOneThingAtATime) {
  const std::vector<StageTimes> times = {{1, 2, 0.5}, {3, 1, 1}, {0.7, 0.3, 2}, {1, 1, 0}};
  for (const auto schedule : kSchedules) {
    const auto table = simulate_pipeline(times, 9, schedule);
    std::map<std::tuple<size_t, PassKind, size_t>, PipelinePass> passes;
    for (size_t stage = 0; stage < times.size(); ++stage) {
      double free = 0;
      for (const auto& pass : table.stages[stage]) {
        EXPECT_GE(pass.start, free);
        free = pass.end;
        EXPECT_TRUE(passes.emplace(std::tuple(stage, pass.kind, pass.micro_batch), pass).second);
      }
      EXPECT_LE(free, table.duration);
      size_t expected = 9 * 2;
      for (size_t i = 0; schedule == PipelineSchedule::kZeroBubble && i < 9; ++i)
        expected += PipelinePlace{.stage = stage, .stages = 4, .micro_batches = 9}.is_put_off(i) ? 1 : 0;
      EXPECT_EQ(table.stages[stage].size(), expected);
    }
    for (const auto& [key, pass] : passes) {
      const auto [stage, kind, i] = key;
      const auto expect_after = [&, start = pass.start](size_t other_stage, PassKind other, size_t other_i) {
        EXPECT_GE(start + kNear, passes.at({other_stage, other, other_i}).end);
      };
      if (kind == PassKind::kForward && stage > 0) expect_after(stage - 1, PassKind::kForward, i);
      if (kind == PassKind::kBackward && stage + 1 < times.size())
        expect_after(stage + 1, PassKind::kBackward, i);
      if (kind == PassKind::kBackward) expect_after(stage, PassKind::kForward, i);
      if (kind == PassKind::kWeights) expect_after(stage, PassKind::kBackward, i);
    }
  }
}

TEST(PipelineSchedule, StagesHoldNoMoreMicroBatchesThanIsPromised) {
  const std::vector<StageTimes> times = {{1, 1, 1}, {2, 1, 1}, {1, 3, 2}};
  for (size_t stage = 0; stage < times.size(); ++stage) {
    EXPECT_EQ(simulate_pipeline(times, 12, PipelineSchedule::kGPipe).most_held(stage), 12);
    EXPECT_LE(simulate_pipeline(times, 12, PipelineSchedule::k1F1B).most_held(stage), times.size() - stage);
    EXPECT_LE(simulate_pipeline(times, 12, PipelineSchedule::kZeroBubble).most_held(stage), times.size());
  }
}

// Whatever the passes take, also where there are few micro-batches.
TEST(PipelineSchedule, ZeroBubbleHoldsAsManyMicroBatchesAsThereAreStages) {
  std::mt19937 random(1);
  const auto time = [&random] { return std::array{0.2, 1.0, 2.0, 5.0}[random() % 4]; };
  for (int round = 0; round < 300; ++round) {
    std::vector<StageTimes> times(1 + random() % 8);
    for (auto& each : times) each = {time(), time(), time()};
    const size_t micro_batches = 1 + random() % 30;
    const auto table = simulate_pipeline(times, micro_batches, PipelineSchedule::kZeroBubble);
    for (size_t stage = 0; stage < times.size(); ++stage)
      EXPECT_LE(table.most_held(stage), times.size()) << times.size() << " and " << micro_batches;
  }
  for (size_t stages = 2; stages <= 8; ++stages) {
    for (size_t micro_batches = stages; micro_batches < 24; ++micro_batches)
      EXPECT_NEAR(simulate_equal(stages, micro_batches, PipelineSchedule::kZeroBubble).duration,
                  static_cast<double>(3 * micro_batches + stages - 1), kNear)
          << stages << " stages, " << micro_batches << " micro-batches";
  }
}

TEST(PipelineSchedule, StagesTakePassesInTheOrderOfTheSchedule) {
  const auto order = [](PipelineSchedule schedule, size_t stage) {
    return order_of(simulate_equal(2, 3, schedule).stages[stage]);
  };
  EXPECT_EQ(order(PipelineSchedule::kGPipe, 1), "F0 F1 F2 B2 B0 B1");
  EXPECT_EQ(order(PipelineSchedule::k1F1B, 0), "F0 F1 B0 F2 B1 B2");
  EXPECT_EQ(order(PipelineSchedule::k1F1B, 1), "F0 B0 F1 B1 F2 B2");
  EXPECT_EQ(order(PipelineSchedule::kZeroBubble, 0), "F0 F1 B0 F2 B1 B2 W2");
  EXPECT_EQ(order(PipelineSchedule::kZeroBubble, 1), "F0 B0 F1 B1 F2 B2 W0 W2");
}

TEST(PipelineSchedule, ASlowStageIsWhatAllWaitFor) {
  const auto table = simulate_pipeline({{1, 1, 1}, {10, 10, 10}, {1, 1, 1}}, 20, PipelineSchedule::k1F1B);
  EXPECT_NEAR(table.duration, 20 * 30 + 2 + 1 + 2 + 1, 3);
  EXPECT_GT(table.bubble(), 0.5);
}

TEST(PipelineSchedule, WhatTakesNoTimeIsNoObstacle) {
  EXPECT_EQ(simulate_equal(3, 4, PipelineSchedule::kZeroBubble, {0, 0, 0}).duration, 0);
  EXPECT_EQ(simulate_equal(3, 4, PipelineSchedule::kZeroBubble, {0, 0, 0}).bubble(), 0);
}

TEST(PipelineSchedule, WhatMakesNoSenseIsRefused) {
  EXPECT_THROW(simulate_pipeline({}, 4, PipelineSchedule::k1F1B), InvalidArgument);
  EXPECT_THROW(simulate_pipeline({{}}, 0, PipelineSchedule::k1F1B), InvalidArgument);
  EXPECT_THROW(simulate_pipeline({{.forward = -1}}, 1, PipelineSchedule::k1F1B), InvalidArgument);
}

}  // namespace
}  // namespace muster::detail
