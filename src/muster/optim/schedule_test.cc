#include "muster/optim/schedule.h"

#include <cmath>

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster {
namespace {

TEST(Schedule, ConstantRateIsOne) {
  EXPECT_EQ(constant_rate()(0), 1);
  EXPECT_EQ(constant_rate()(1'000'000), 1);
}

TEST(Schedule, StepDecayFallsEverySoManySteps) {
  const auto schedule = step_decay({.every = 10, .factor = 0.5});
  EXPECT_EQ(schedule(0), 1);
  EXPECT_EQ(schedule(9), 1);
  EXPECT_EQ(schedule(10), 0.5);
  EXPECT_EQ(schedule(29), 0.25);
}

TEST(Schedule, MultiStepFallsAtTheGivenSteps) {
  const auto schedule = multi_step({.at = {3, 7}, .factor = 0.5});
  EXPECT_EQ(schedule(2), 1);
  EXPECT_EQ(schedule(3), 0.5);
  EXPECT_EQ(schedule(6), 0.5);
  EXPECT_EQ(schedule(7), 0.25);
  EXPECT_EQ(schedule(1000), 0.25);
}

TEST(Schedule, ExponentialDecayIsSmooth) {
  const auto schedule = exponential_decay({.factor = 0.25, .every = 10});
  EXPECT_EQ(schedule(0), 1);
  EXPECT_DOUBLE_EQ(schedule(5), 0.5);
  EXPECT_DOUBLE_EQ(schedule(10), 0.25);
}

TEST(Schedule, CosineDecayReachesItsFloorAndStaysThere) {
  const auto schedule = cosine_decay({.steps = 100, .floor = 0.2});
  EXPECT_EQ(schedule(0), 1);
  EXPECT_NEAR(schedule(50), 0.6, 1e-12);
  EXPECT_NEAR(schedule(25), 0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2, 1e-12);
  EXPECT_NEAR(schedule(100), 0.2, 1e-12);
  EXPECT_NEAR(schedule(150), 0.2, 1e-12);
}

TEST(Schedule, LinearDecayReachesItsFloorAndStaysThere) {
  const auto line = linear_decay({.steps = 100, .floor = 0.2});
  EXPECT_EQ(line(0), 1);
  EXPECT_NEAR(line(25), 0.8, 1e-12);
  EXPECT_EQ(line(100), 0.2);
  EXPECT_EQ(line(500), 0.2);
  EXPECT_NEAR(linear_decay({.steps = 100, .power = 2})(50), 0.25, 1e-12);
}

TEST(Schedule, WarmupLeadsToTheScheduleAfterIt) {
  const auto schedule = warmup(10, linear_decay({.steps = 100}), 0.5);
  EXPECT_EQ(schedule(0), 0.5);
  EXPECT_NEAR(schedule(5), 0.75, 1e-12);
  EXPECT_EQ(schedule(10), 1);
  EXPECT_NEAR(schedule(60), 0.5, 1e-12);
  EXPECT_EQ(schedule(110), 0);
  EXPECT_EQ(warmup(0, constant_rate())(0), 1);
  EXPECT_EQ(warmup(4, constant_rate())(1), 0.25);
}

TEST(Schedule, InvalidValuesAreRefused) {
  EXPECT_THROW(step_decay({.factor = 0.5}), InvalidArgument);
  EXPECT_THROW(step_decay({.every = 1, .factor = 0}), InvalidArgument);
  EXPECT_THROW(multi_step({.at = {5, 5}}), InvalidArgument);
  EXPECT_THROW(multi_step({.at = {-1}}), InvalidArgument);
  EXPECT_THROW(exponential_decay({.factor = 1.5}), InvalidArgument);
  EXPECT_THROW(exponential_decay({.factor = NAN}), InvalidArgument);
  EXPECT_THROW(cosine_decay({}), InvalidArgument);
  EXPECT_THROW(cosine_decay({.steps = 10, .floor = -1}), InvalidArgument);
  EXPECT_THROW(linear_decay({.steps = 10, .power = 0}), InvalidArgument);
  EXPECT_THROW(warmup(-1, constant_rate()), InvalidArgument);
  EXPECT_THROW(warmup(1, nullptr), InvalidArgument);
}

}  // namespace
}  // namespace muster
