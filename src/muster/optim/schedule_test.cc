#include "muster/schedule.h"

#include <cmath>

#include <gtest/gtest.h>

#include "muster/error.h"

namespace muster::detail {
namespace {

constexpr int64_t kEpoch = 100;

Position at(int64_t samples) {
  return {.samples = samples, .samples_per_epoch = kEpoch};
}

TEST(Schedule, ConstantRateIsOne) {
  EXPECT_EQ(constant_rate()(at(0)), 1);
  EXPECT_EQ(constant_rate()(at(1'000'000)), 1);
}

TEST(Schedule, StepDecayFallsAfterEverySpan) {
  for (const auto& schedule : {step_decay(samples(10), 0.5), step_decay(epochs(0.1), 0.5)}) {
    EXPECT_EQ(schedule(at(0)), 1);
    EXPECT_EQ(schedule(at(9)), 1);
    EXPECT_EQ(schedule(at(10)), 0.5);
    EXPECT_EQ(schedule(at(29)), 0.25);
  }
}

TEST(Schedule, MultiStepFallsAtTheGivenPoints) {
  const auto schedule = multi_step({samples(3), epochs(0.07)}, 0.5);
  EXPECT_EQ(schedule(at(2)), 1);
  EXPECT_EQ(schedule(at(3)), 0.5);
  EXPECT_EQ(schedule(at(6)), 0.5);
  EXPECT_EQ(schedule(at(8)), 0.25);
  EXPECT_EQ(schedule(at(1000)), 0.25);
}

TEST(Schedule, ExponentialDecayIsSmooth) {
  const auto schedule = exponential_decay(samples(10), 0.25);
  EXPECT_EQ(schedule(at(0)), 1);
  EXPECT_DOUBLE_EQ(schedule(at(5)), 0.5);
  EXPECT_DOUBLE_EQ(schedule(at(10)), 0.25);
}

TEST(Schedule, CosineDecayReachesItsFloorAndStaysThere) {
  const auto schedule = cosine_decay(epochs(1), {.floor = 0.2});
  EXPECT_EQ(schedule(at(0)), 1);
  EXPECT_NEAR(schedule(at(50)), 0.6, 1e-12);
  EXPECT_NEAR(schedule(at(25)), 0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2, 1e-12);
  EXPECT_NEAR(schedule(at(100)), 0.2, 1e-12);
  EXPECT_NEAR(schedule(at(150)), 0.2, 1e-12);
}

TEST(Schedule, LinearDecayReachesItsFloorAndStaysThere) {
  const auto line = linear_decay(samples(100), {.floor = 0.2});
  EXPECT_EQ(line(at(0)), 1);
  EXPECT_NEAR(line(at(25)), 0.8, 1e-12);
  EXPECT_EQ(line(at(100)), 0.2);
  EXPECT_EQ(line(at(500)), 0.2);
  EXPECT_NEAR(linear_decay(samples(100), {.power = 2})(at(50)), 0.25, 1e-12);
}

TEST(Schedule, WarmupLeadsToTheScheduleAfterIt) {
  for (const Span length : {samples(10), epochs(0.1)}) {
    const auto schedule = warmup(length, linear_decay(epochs(1)), 0.5);
    EXPECT_EQ(schedule(at(0)), 0.5);
    EXPECT_NEAR(schedule(at(5)), 0.75, 1e-12);
    EXPECT_EQ(schedule(at(10)), 1);
    EXPECT_NEAR(schedule(at(60)), 0.5, 1e-12);
    EXPECT_EQ(schedule(at(110)), 0);
  }
  EXPECT_EQ(warmup(samples(4), constant_rate())(at(1)), 0.25);
}

TEST(Schedule, EpochsNeedTheSizeOfOne) {
  EXPECT_THROW(cosine_decay(epochs(5))({.samples = 3}), InvalidArgument);
  EXPECT_THROW((void)Position{.samples = 3}.epochs(), InvalidArgument);
  EXPECT_EQ(cosine_decay(samples(5))({.samples = 0}), 1);
  EXPECT_DOUBLE_EQ(at(250).epochs(), 2.5);
}

TEST(Schedule, InvalidValuesAreRefused) {
  EXPECT_THROW(step_decay(epochs(0)), InvalidArgument);
  EXPECT_THROW(step_decay(samples(-1)), InvalidArgument);
  EXPECT_THROW(step_decay(samples(1), 0), InvalidArgument);
  EXPECT_THROW(multi_step({samples(5), samples(5)})(at(0)), InvalidArgument);
  EXPECT_THROW(multi_step({samples(-1)}), InvalidArgument);
  EXPECT_THROW(multi_step({epochs(30), epochs(20)}), InvalidArgument);
  EXPECT_THROW(cosine_decay(epochs(5), {.power = 2}), InvalidArgument);
  EXPECT_THROW(exponential_decay(samples(1), 1.5), InvalidArgument);
  EXPECT_THROW(exponential_decay(epochs(NAN), 0.5), InvalidArgument);
  EXPECT_THROW(cosine_decay(epochs(5), {.floor = -1}), InvalidArgument);
  EXPECT_THROW(linear_decay(samples(10), {.power = 0}), InvalidArgument);
  EXPECT_THROW(warmup(samples(1), nullptr), InvalidArgument);
}

}  // namespace
}  // namespace muster::detail
