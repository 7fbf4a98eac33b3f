#include "muster/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "muster/base/error.h"

namespace muster {

using namespace detail;

namespace {

Span checked(const char* what, Span span) {
  const double samples = span.in_samples({.samples_per_epoch = 1});
  if (!(samples > 0) || !std::isfinite(samples))
    raise<InvalidArgument>("{} is {}; expected epochs or samples above 0", what, samples);
  return span;
}

void require_factor(const char* option, double factor) {
  if (!(factor > 0 && factor <= 1)) {
    raise<InvalidArgument>("{} = {}; expected a number above 0 and at most 1", option, factor);
  }
}

void require_floor(const char* option, double floor) {
  if (!(floor >= 0 && floor <= 1)) raise<InvalidArgument>("{} = {}; expected 0 to 1", option, floor);
}

// How many spans have passed.
double passed(const Position& now, const Span& span) {
  return static_cast<double>(now.samples) / span.in_samples(now);
}

}  // namespace

double Position::epochs() const {
  if (samples_per_epoch < 1)
    throw InvalidArgument(
        "epochs can't be counted: say how many samples an epoch has, of all workers together, "
        "in TrainerOptions::samples_per_epoch");
  return static_cast<double>(samples) / static_cast<double>(samples_per_epoch);
}

double Span::in_samples(const Position& now) const {
  if (!in_epochs_) return count_;
  if (now.samples_per_epoch < 1) (void)now.epochs();  // throws
  return count_ * static_cast<double>(now.samples_per_epoch);
}

Span epochs(double count) {
  Span span;
  span.count_ = count;
  span.in_epochs_ = true;
  return span;
}

Span samples(int64_t count) {
  Span span;
  span.count_ = static_cast<double>(count);
  return span;
}

Schedule constant_rate() {
  return [](const Position&) { return 1.0; };
}

Schedule step_decay(Span every, double factor) {
  checked("the span of step_decay", every);
  require_factor("step_decay's factor", factor);
  return [=](const Position& now) { return std::pow(factor, std::floor(passed(now, every))); };
}

Schedule multi_step(std::vector<Span> at, double factor) {
  require_factor("multi_step's factor", factor);
  for (const Span& span : at) checked("a point of multi_step", span);
  constexpr Position kShort = {.samples_per_epoch = 1};
  constexpr Position kLong = {.samples_per_epoch = 1'000'000'000};
  for (size_t i = 1; i < at.size(); ++i) {  // of the same kind; others are known when training begins
    if (at[i].in_samples(kShort) <= at[i - 1].in_samples(kShort) &&
        at[i].in_samples(kLong) <= at[i - 1].in_samples(kLong))
      raise<InvalidArgument>(
          "the points of multi_step do not ascend: number {} is not after the one before it", i + 1);
  }
  return [at = std::move(at), factor](const Position& now) {
    double before = 0;
    double result = 1;
    for (const Span& span : at) {
      const double point = span.in_samples(now);
      if (point <= before)
        raise<InvalidArgument>("the points of multi_step do not ascend: {} samples come after {}", point,
                               before);
      before = point;
      if (static_cast<double>(now.samples) >= point) result *= factor;
    }
    return result;
  };
}

Schedule exponential_decay(Span every, double factor) {
  checked("the span of exponential_decay", every);
  require_factor("exponential_decay's factor", factor);
  return [=](const Position& now) { return std::pow(factor, passed(now, every)); };
}

Schedule cosine_decay(Span length, DecayOptions options) {
  checked("the length of cosine_decay", length);
  require_floor("cosine_decay's floor", options.floor);
  if (options.power != 1)
    raise<InvalidArgument>("cosine_decay's power = {}: only linear_decay has one", options.power);
  return [=](const Position& now) {
    const double wave = (1 + std::cos(std::numbers::pi * std::min(1.0, passed(now, length)))) / 2;
    return options.floor + (1 - options.floor) * wave;
  };
}

Schedule linear_decay(Span length, DecayOptions options) {
  checked("the length of linear_decay", length);
  require_floor("linear_decay's floor", options.floor);
  if (!(options.power > 0 && std::isfinite(options.power))) {
    raise<InvalidArgument>("linear_decay's power = {}; expected a finite number above 0", options.power);
  }
  return [=](const Position& now) {
    const double left = 1 - std::min(1.0, passed(now, length));
    return options.floor + (1 - options.floor) * std::pow(left, options.power);
  };
}

Schedule warmup(Span length, Schedule after, double from) {
  checked("the length of warmup", length);
  if (!after) raise<InvalidArgument>("warmup needs a schedule to follow it; constant_rate() is the simplest");
  require_floor("warmup's first factor", from);
  return [length, after = std::move(after), from](const Position& now) {
    Position then = now;
    then.samples = std::max<int64_t>(0, now.samples - std::llround(length.in_samples(now)));
    const double share = std::min(1.0, passed(now, length));
    return share < 1 ? from + (after(then) - from) * share : after(then);
  };
}

}  // namespace muster
