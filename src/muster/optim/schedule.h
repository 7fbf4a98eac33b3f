#pragma once

// Learning-rate schedules as values: a factor on the base rate for every step, counted from 0.
//
//   Schedule schedule = warmup(500, cosine_decay({.steps = 10'000, .floor = 0.01}));
//   now.lr = rule->lr() * schedule(step);
//
// A schedule has no state: any step may be asked for, in any order, by any thread. The makers throw
// InvalidArgument for values that make no sense. Steps below 0 are no steps.

#include <cstdint>
#include <functional>
#include <vector>

namespace muster {

using Schedule = std::function<double(int64_t step)>;

/// 1, always.
Schedule constant_rate();

/// Times `factor` every `every` steps.
struct StepDecay {
  int64_t every = 0;
  double factor = 0.1;
};
Schedule step_decay(StepDecay decay);

/// Times `factor` at each of these steps, which ascend.
struct MultiStepDecay {
  std::vector<int64_t> at;
  double factor = 0.1;
};
Schedule multi_step(MultiStepDecay decay);

/// factor ^ (step / every), smoothly.
struct ExponentialDecay {
  double factor = 0;
  int64_t every = 1;
};
Schedule exponential_decay(ExponentialDecay decay);

/// Half a cosine wave from 1 down to `floor` over `steps`, and `floor` from then on.
struct CosineDecay {
  int64_t steps = 0;
  double floor = 0;
};
Schedule cosine_decay(CosineDecay decay);

/// floor + (1 - floor) * (1 - step / steps) ^ power: a straight line for a power of 1. `floor` from `steps`
/// on.
struct LinearDecay {
  int64_t steps = 0;
  double floor = 0;
  double power = 1;
};
Schedule linear_decay(LinearDecay decay);

/// A straight line from `from` at step 0 to the beginning of `after` at step `steps`; then `after`, whose
/// steps count from there.
Schedule warmup(int64_t steps, Schedule after, double from = 0);

}  // namespace muster
