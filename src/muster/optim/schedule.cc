#include "muster/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "muster/base/error.h"

namespace muster {
namespace {

void require_steps(const char* option, int64_t steps) {
  if (steps < 1) raise<InvalidArgument>("{} = {}; expected at least 1 step", option, steps);
}

void require_factor(const char* option, double factor) {
  if (!(factor > 0 && factor <= 1)) {
    raise<InvalidArgument>("{} = {}; expected a number above 0 and at most 1", option, factor);
  }
}

void require_floor(const char* option, double floor) {
  if (!(floor >= 0 && floor <= 1)) raise<InvalidArgument>("{} = {}; expected 0 to 1", option, floor);
}

double part(int64_t step, int64_t steps) {
  return std::min(1.0, static_cast<double>(step) / static_cast<double>(steps));
}

}  // namespace

Schedule constant_rate() {
  return [](int64_t) { return 1.0; };
}

Schedule step_decay(StepDecay decay) {
  require_steps("step_decay.every", decay.every);
  require_factor("step_decay.factor", decay.factor);
  return [decay](int64_t step) { return std::pow(decay.factor, static_cast<double>(step / decay.every)); };
}

Schedule multi_step(MultiStepDecay decay) {
  require_factor("multi_step.factor", decay.factor);
  for (size_t i = 0; i < decay.at.size(); ++i) {
    if (decay.at[i] < 0 || (i > 0 && decay.at[i] <= decay.at[i - 1])) {
      raise<InvalidArgument>("multi_step.at[{}] = {}; expected steps from 0 on, each above the one before", i,
                             decay.at[i]);
    }
  }
  return [decay = std::move(decay)](int64_t step) {
    const auto passed = std::upper_bound(decay.at.begin(), decay.at.end(), step) - decay.at.begin();
    return std::pow(decay.factor, static_cast<double>(passed));
  };
}

Schedule exponential_decay(ExponentialDecay decay) {
  require_factor("exponential_decay.factor", decay.factor);
  require_steps("exponential_decay.every", decay.every);
  return [decay](int64_t step) {
    return std::pow(decay.factor, static_cast<double>(step) / static_cast<double>(decay.every));
  };
}

Schedule cosine_decay(CosineDecay decay) {
  require_steps("cosine_decay.steps", decay.steps);
  require_floor("cosine_decay.floor", decay.floor);
  return [decay](int64_t step) {
    const double wave = (1 + std::cos(std::numbers::pi * part(step, decay.steps))) / 2;
    return decay.floor + (1 - decay.floor) * wave;
  };
}

Schedule linear_decay(LinearDecay decay) {
  require_steps("linear_decay.steps", decay.steps);
  require_floor("linear_decay.floor", decay.floor);
  if (!(decay.power > 0 && std::isfinite(decay.power))) {
    raise<InvalidArgument>("linear_decay.power = {}; expected a finite number above 0", decay.power);
  }
  return [decay](int64_t step) {
    return decay.floor + (1 - decay.floor) * std::pow(1 - part(step, decay.steps), decay.power);
  };
}

Schedule warmup(int64_t steps, Schedule after, double from) {
  if (steps < 0) raise<InvalidArgument>("warmup of {} steps; expected 0 or more", steps);
  if (!after) raise<InvalidArgument>("warmup needs a schedule to follow it; constant_rate() is the simplest");
  require_floor("warmup's first factor", from);
  return [steps, after = std::move(after), from](int64_t step) {
    if (step >= steps) return after(step - steps);
    return from + (after(0) - from) * part(step, steps);
  };
}

}  // namespace muster
