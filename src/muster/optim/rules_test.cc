#include "muster/optim/rules.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kSteps = 100;

template <typename T>
constexpr DType kDTypeOf = std::is_same_v<T, double> ? DType::kFloat64 : DType::kFloat32;

// A parameter with its states, updated by a rule as a caller would do it.
template <typename T>
struct Subject {
  Subject(UpdateRulePtr the_rule, std::vector<T> start)
      : rule(std::move(the_rule)), parameter(std::move(start)) {
    states.resize(rule->states(), std::vector<T>(parameter.size()));
  }

  UpdateRange range(const std::vector<T>& gradient, size_t from, size_t to) {
    UpdateRange result = {.dtype = kDTypeOf<T>,
                          .parameter = parameter.data() + from,
                          .gradient = gradient.data() + from,
                          .count = to - from};
    for (size_t i = 0; i < states.size(); ++i) result.states[i] = states[i].data() + from;
    return result;
  }

  Norms measure(const std::vector<T>& gradient, const UpdateNow& now) {
    return rule->measures() ? rule->measure(range(gradient, 0, parameter.size()), now) : Norms{};
  }

  void update(const std::vector<T>& gradient, UpdateNow now) {
    rule->apply(range(gradient, 0, parameter.size()), now, measure(gradient, now));
  }

  const UpdateRulePtr rule;
  std::vector<T> parameter;
  std::vector<std::vector<T>> states;
};

template <typename T>
std::vector<T> random_values(size_t count, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(normal(generator));
  return values;
}

// What a rule must do to one element, in double: p changes with g, and s are the states. The norms are those
// of the whole parameter, for LARS.
struct Element {
  double p, g;
  double s[3];
};
using Formula = std::function<void(Element&, double step)>;

// 100 steps with random gradients; a gradient scale, so that it is seen to be applied first.
template <typename T>
void expect_formula(const UpdateRulePtr& rule, const Formula& formula, double tolerance) {
  constexpr size_t kCount = 37;
  const double scale = 0.5;
  Subject<T> subject(rule, random_values<T>(kCount, 1));
  std::vector<Element> expected(kCount);
  for (size_t i = 0; i < kCount; ++i) expected[i] = {.p = subject.parameter[i]};
  for (int step = 1; step <= kSteps; ++step) {
    const auto gradient = random_values<T>(kCount, 100 + step);
    subject.update(gradient, {.step = step, .lr = rule->lr(), .gradient_scale = scale});
    for (size_t i = 0; i < kCount; ++i) {
      expected[i].g = scale * gradient[i];
      formula(expected[i], step);
    }
  }
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_NEAR(subject.parameter[i], expected[i].p, tolerance * std::max(1.0, std::abs(expected[i].p)))
        << rule->name() << " of " << name_of(kDTypeOf<T>) << ", element " << i;
  }
}

// A hundred roundings of a float32 near 1, at 6e-8 each, stay below 4e-6 by far; float64 likewise.
void expect_formula(const UpdateRulePtr& rule, const Formula& formula) {
  expect_formula<float>(rule, formula, 4e-6);
  expect_formula<double>(rule, formula, 1e-13);
}

TEST(Rules, SgdEqualsItsFormulaOver100Steps) {
  expect_formula(sgd({.lr = 0.05}), [](Element& e, double) { e.p -= 0.05 * e.g; });
  expect_formula(sgd({.lr = 0.05, .weight_decay = 0.1}),
                 [](Element& e, double) { e.p -= 0.05 * (e.g + 0.1 * e.p); });
}

TEST(Rules, SgdWithMomentumEqualsItsFormulaOver100Steps) {
  expect_formula(sgd({.lr = 0.05, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.1}),
                 [](Element& e, double step) {
                   const double d = e.g + 0.1 * e.p;
                   e.s[0] = step == 1 ? d : 0.9 * e.s[0] + 0.7 * d;
                   e.p -= 0.05 * e.s[0];
                 });
  expect_formula(sgd({.lr = 0.05, .momentum = 0.9, .nesterov = true}), [](Element& e, double) {
    e.s[0] = 0.9 * e.s[0] + e.g;
    e.p -= 0.05 * (e.g + 0.9 * e.s[0]);
  });
}

void adam_moments(Element& e, double d) {
  e.s[0] = 0.9 * e.s[0] + 0.1 * d;
  e.s[1] = 0.99 * e.s[1] + 0.01 * d * d;
}

double adam_direction(const Element& e, double second, double step) {
  return e.s[0] / (1 - std::pow(0.9, step)) / (std::sqrt(second / (1 - std::pow(0.99, step))) + 1e-3);
}

TEST(Rules, AdamEqualsItsFormulaOver100Steps) {
  expect_formula(adam({.lr = 0.01, .betas = {0.9, 0.99}, .eps = 1e-3, .weight_decay = 0.1}),
                 [](Element& e, double step) {
                   adam_moments(e, e.g + 0.1 * e.p);
                   e.p -= 0.01 * adam_direction(e, e.s[1], step);
                 });
}

TEST(Rules, AmsgradDividesByTheLargestMeanSoFar) {
  expect_formula(adam({.lr = 0.01, .betas = {0.9, 0.99}, .eps = 1e-3, .amsgrad = true}),
                 [](Element& e, double step) {
                   adam_moments(e, e.g);
                   e.s[2] = std::max(e.s[2], e.s[1]);
                   e.p -= 0.01 * adam_direction(e, e.s[2], step);
                 });
}

TEST(Rules, AdamWEqualsItsFormulaOver100Steps) {
  expect_formula(adamw({.lr = 0.01, .betas = {0.9, 0.99}, .eps = 1e-3, .weight_decay = 0.1}),
                 [](Element& e, double step) {
                   e.p *= 1 - 0.01 * 0.1;
                   adam_moments(e, e.g);
                   e.p -= 0.01 * adam_direction(e, e.s[1], step);
                 });
}

TEST(Rules, AdagradEqualsItsFormulaOver100Steps) {
  expect_formula(
      adagrad({.lr = 0.1, .lr_decay = 0.02, .weight_decay = 0.1, .initial_accumulator_value = 0.5}),
      [](Element& e, double step) {
        const double d = e.g + 0.1 * e.p;
        e.s[0] = (step == 1 ? 0.5 : e.s[0]) + d * d;
        e.p -= 0.1 / (1 + (step - 1) * 0.02) * d / (std::sqrt(e.s[0]) + 1e-10);
      });
}

TEST(Rules, RmsPropEqualsItsFormulaOver100Steps) {
  expect_formula(rmsprop({.lr = 0.01, .alpha = 0.9, .eps = 1e-3, .weight_decay = 0.1}),
                 [](Element& e, double) {
                   const double d = e.g + 0.1 * e.p;
                   e.s[0] = 0.9 * e.s[0] + 0.1 * d * d;
                   e.p -= 0.01 * d / (std::sqrt(e.s[0]) + 1e-3);
                 });
  expect_formula(rmsprop({.lr = 0.01, .alpha = 0.9, .eps = 1e-3, .momentum = 0.5, .centered = true}),
                 [](Element& e, double) {
                   e.s[0] = 0.9 * e.s[0] + 0.1 * e.g * e.g;
                   e.s[1] = 0.9 * e.s[1] + 0.1 * e.g;
                   e.s[2] = 0.5 * e.s[2] + e.g / (std::sqrt(e.s[0] - e.s[1] * e.s[1]) + 1e-3);
                   e.p -= 0.01 * e.s[2];
                 });
}

TEST(Rules, CenteredRmsPropStaysFiniteWithAConstantGradient) {
  Subject<float> subject(rmsprop({.alpha = 0.5, .centered = true}), {1, 1, 1});
  const std::vector<float> gradient = {0.1F, 0.3F, 0.7F};
  for (int step = 1; step <= 1000; ++step) subject.update(gradient, {.step = step, .lr = 1e-12});
  for (const float value : subject.parameter) EXPECT_TRUE(std::isfinite(value)) << value;
}

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

// LARS and LAMB need whole parameters: one element's formula is not enough.
using WholeFormula = std::function<void(std::vector<Element>&, double step)>;

void expect_whole(const UpdateRulePtr& rule, bool adapt, const WholeFormula& formula) {
  constexpr size_t kCount = 2500;  // more than two tiles
  Subject<double> subject(rule, random_values<double>(kCount, 1));
  std::vector<Element> expected(kCount);
  for (size_t i = 0; i < kCount; ++i) expected[i] = {.p = subject.parameter[i]};
  for (int step = 1; step <= kSteps; ++step) {
    const auto gradient = random_values<double>(kCount, 100 + step);
    subject.update(gradient, {.step = step, .lr = rule->lr(), .gradient_scale = 0.5, .adapt = adapt});
    for (size_t i = 0; i < kCount; ++i) expected[i].g = 0.5 * gradient[i];
    formula(expected, step);
  }
  for (size_t i = 0; i < kCount; ++i) ASSERT_NEAR(subject.parameter[i], expected[i].p, 1e-12) << i;
}

double norm_of(const std::vector<Element>& elements, const std::function<double(const Element&)>& value) {
  std::vector<double> values;
  for (const Element& element : elements) values.push_back(value(element));
  return norm(values);
}

TEST(Rules, LarsEqualsItsFormulaOver100Steps) {
  for (const bool adapt : {true, false}) {
    for (const bool nesterov : {false, true}) {
      expect_whole(lars({.lr = 0.5, .weight_decay = 0.01, .trust = 0.02, .nesterov = nesterov}), adapt,
                   [&](std::vector<Element>& elements, double) {
                     const double p = norm_of(elements, [](const Element& e) { return e.p; });
                     const double g = norm_of(elements, [](const Element& e) { return e.g; });
                     const double rate = 0.5 * (adapt ? 0.02 * p / (g + 0.01 * p + 1e-8) : 1);
                     for (Element& e : elements) {
                       const double d = rate * (e.g + 0.01 * e.p);
                       e.s[0] = 0.9 * e.s[0] + d;
                       e.p -= nesterov ? d + 0.9 * e.s[0] : e.s[0];
                     }
                   });
    }
  }
}

TEST(Rules, LambEqualsItsFormulaOver100Steps) {
  for (const bool adapt : {true, false}) {
    expect_whole(lamb({.lr = 0.01, .betas = {0.9, 0.99}, .eps = 1e-3, .weight_decay = 0.05}), adapt,
                 [&](std::vector<Element>& elements, double step) {
                   const auto direction = [&](const Element& e) {
                     return adam_direction(e, e.s[1], step) + 0.05 * e.p;
                   };
                   for (Element& e : elements) adam_moments(e, e.g);
                   const double p = norm_of(elements, [](const Element& e) { return e.p; });
                   const double ratio = adapt ? p / norm_of(elements, direction) : 1;
                   for (Element& e : elements) e.p -= 0.01 * ratio * direction(e);
                 });
  }
}

TEST(Rules, TrustIsOneWhereANormIsZero) {
  const std::vector<double> gradient = {3, 4};
  Subject<double> by_lars(lars({.lr = 0.5, .momentum = 0}), {0, 0});
  by_lars.update(gradient, {.step = 1, .lr = 0.5});
  EXPECT_EQ(by_lars.parameter, (std::vector<double>{-1.5, -2}));
  Subject<double> by_lamb(lamb({.eps = 0}), {0, 0});
  by_lamb.update(gradient, {.step = 1, .lr = 0.5});
  EXPECT_NEAR(by_lamb.parameter[0], -0.5, 1e-12);
  EXPECT_NEAR(by_lamb.parameter[1], -0.5, 1e-12);
}

std::vector<UpdateRulePtr> all_rules() {
  return {sgd(),
          sgd({.momentum = 0.9, .weight_decay = 0.1}),
          sgd({.momentum = 0.9, .nesterov = true}),
          adam(),
          adam({.weight_decay = 0.1, .amsgrad = true}),
          adamw(),
          adagrad({.initial_accumulator_value = 0.1}),
          rmsprop(),
          rmsprop({.weight_decay = 0.1, .momentum = 0.9, .centered = true}),
          lars(),
          lars({.momentum = 0, .weight_decay = 0.1}),
          lamb()};
}

template <typename T>
void expect_same_when_cut(const UpdateRulePtr& rule) {
  constexpr size_t kCount = 3001;
  const std::vector<size_t> cuts = {0, 1, 8, 25, 64, 1089, 1089, 3000, kCount};
  Subject<T> whole(rule, random_values<T>(kCount, 1));
  Subject<T> cut(rule, random_values<T>(kCount, 1));
  for (int step = 1; step <= 3; ++step) {
    const auto gradient = random_values<T>(kCount, 100 + step);
    const UpdateNow now = {.step = step, .lr = 0.01};
    const Norms norms = whole.measure(gradient, now);
    whole.rule->apply(whole.range(gradient, 0, kCount), now, norms);
    Norms sum;
    for (size_t i = 1; i < cuts.size(); ++i) {
      if (rule->measures()) sum += rule->measure(cut.range(gradient, cuts[i - 1], cuts[i]), now);
    }
    EXPECT_NEAR(sum.parameter, norms.parameter, 1e-12 * norms.parameter);
    EXPECT_NEAR(sum.update, norms.update, 1e-12 * norms.update);
    for (size_t i = cuts.size() - 1; i > 0; --i) {
      rule->apply(cut.range(gradient, cuts[i - 1], cuts[i]), now, norms);
    }
  }
  EXPECT_EQ(whole.parameter, cut.parameter) << rule->name();
  EXPECT_EQ(whole.states, cut.states) << rule->name();
}

TEST(Rules, CutRangesGiveTheSameBits) {
  for (const auto& rule : all_rules()) {
    expect_same_when_cut<float>(rule);
    expect_same_when_cut<double>(rule);
  }
}

TEST(Rules, AnEmptyRangeIsFine) {
  for (const auto& rule : all_rules()) Subject<float>(rule, {}).update({}, {.step = 1, .lr = 1});
}

TEST(Rules, TellTheirNameRateAndStates) {
  EXPECT_STREQ(adamw()->name(), "adamw");
  EXPECT_EQ(adam({.lr = 0.25})->lr(), 0.25);
  EXPECT_EQ(sgd()->states(), 0);
  EXPECT_EQ(sgd({.momentum = 0.5})->states(), 1);
  EXPECT_EQ(adam()->states(), 2);
  EXPECT_EQ(adam({.amsgrad = true})->states(), 3);
  EXPECT_EQ(rmsprop({.momentum = 0.5, .centered = true})->states(), 3);
  EXPECT_FALSE(adam()->measures());
  EXPECT_TRUE(lamb()->measures());
}

template <typename Make>
void expect_refused(const Make& make, const std::string& option, const std::string& value) {
  try {
    make();
    ADD_FAILURE() << option << " = " << value << " was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(option), HasSubstr(value), HasSubstr("expected")));
  }
}

TEST(Rules, InvalidOptionsAreNamedWithTheirValue) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_refused([] { sgd({.lr = -0.5}); }, "sgd.lr", "-0.5");
  expect_refused([&] { sgd({.lr = nan}); }, "sgd.lr", "nan");
  expect_refused([] { sgd({.momentum = 1}); }, "sgd.momentum", "1");
  expect_refused([] { sgd({.momentum = 0.9, .dampening = 2}); }, "sgd.dampening", "2");
  expect_refused([] { sgd({.nesterov = true}); }, "sgd.nesterov", "momentum = 0");
  expect_refused([] { sgd({.momentum = 0.9, .dampening = 0.5, .nesterov = true}); }, "sgd.nesterov",
                 "dampening = 0.5");
  expect_refused([] { adam({.betas = {1, 0.999}}); }, "adam.betas[0]", "1");
  expect_refused([] { adamw({.betas = {0.9, -1}}); }, "adamw.betas[1]", "-1");
  expect_refused([] { adam({.eps = -1}); }, "adam.eps", "-1");
  expect_refused([] { adagrad({.initial_accumulator_value = -2}); }, "adagrad.initial_accumulator_value",
                 "-2");
  expect_refused([] { rmsprop({.alpha = 1.5}); }, "rmsprop.alpha", "1.5");
  expect_refused([] { lars({.trust = 0}); }, "lars.trust", "0");
  expect_refused([] { lars({.momentum = 0, .nesterov = true}); }, "lars.nesterov", "momentum = 0");
  expect_refused([] { lamb({.weight_decay = -1}); }, "lamb.weight_decay", "-1");
}

TEST(Rules, OtherTypesAndStepZeroAreRefused) {
  const auto rule = adam();
  expect_refused([&] { rule->apply({.dtype = DType::kFloat16}, {.lr = 1}); }, "adam", "float16");
  expect_refused([&] { rule->apply({}, {.step = 0, .lr = 1}); }, "adam", "step = 0");
}

TEST(DampedMomentum, WithTheWorkersOwnIsWhatWasAskedFor) {
  EXPECT_EQ(damped_momentum(0.9, 1), 0.9);
  EXPECT_NEAR(damped_momentum(0.9, 2), 0.8, 1e-12);
  EXPECT_NEAR(damped_momentum(0.9, 4), 0.6, 1e-12);
  EXPECT_EQ(damped_momentum(0.9, 20), 0);
  EXPECT_EQ(damped_momentum(0, 2), 0);
}

TEST(DampedMomentum, IsWhatRulesUseForAsynchronousWorkers) {
  const auto gradient = random_values<float>(50, 3);
  const auto start = random_values<float>(50, 4);
  const double damped = damped_momentum(0.9, 2);
  const std::vector<std::pair<UpdateRulePtr, UpdateRulePtr>> rules = {
      {sgd({.lr = 0.1, .momentum = 0.9}), sgd({.lr = 0.1, .momentum = damped})},
      {sgd({.lr = 0.1, .momentum = 0.9, .nesterov = true}),
       sgd({.lr = 0.1, .momentum = damped, .nesterov = true})},
      {rmsprop({.lr = 0.1, .momentum = 0.9}), rmsprop({.lr = 0.1, .momentum = damped})},
      {lars({.lr = 0.1, .momentum = 0.9}), lars({.lr = 0.1, .momentum = damped})}};
  for (const auto& [rule, other] : rules) {
    Subject<float> asynchronous(rule, start);
    Subject<float> expected(other, start);
    for (int step = 1; step <= 4; ++step) {
      asynchronous.update(gradient, {.step = step, .lr = 0.1, .asynchronous = 2});
      expected.update(gradient, {.step = step, .lr = 0.1});
    }
    EXPECT_EQ(asynchronous.parameter, expected.parameter) << rule->to_string();
    EXPECT_EQ(rule->momentum(), 0.9);
  }
  EXPECT_EQ(adam({})->momentum(), 0);
}

template <typename T>
void expect_says_what_is_not_finite(const UpdateRulePtr& rule) {
  constexpr size_t kCount = 41;
  for (size_t at = 0; at <= kCount; ++at) {
    Subject<T> subject(rule, std::vector<T>(kCount, 1));
    std::vector<T> gradient(kCount, static_cast<T>(0.5));
    if (at < kCount)
      gradient[at] = at % 2 == 0 ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::quiet_NaN();
    EXPECT_EQ(rule->apply(subject.range(gradient, 0, kCount), {.lr = 0.1}), at == kCount)
        << rule->to_string() << ", element " << at;
  }
}

TEST(Rules, SayWhetherTheGradientWasFinite) {
  for (const UpdateRulePtr& rule :
       {sgd({}), sgd({.momentum = 0.9}), sgd({.momentum = 0.9, .weight_decay = 0.1, .nesterov = true}),
        adam({}), adam({.weight_decay = 0.1, .amsgrad = true}), adamw({}), adagrad({}), rmsprop({}),
        rmsprop({.momentum = 0.9, .centered = true}), average()}) {
    expect_says_what_is_not_finite<float>(rule);
    expect_says_what_is_not_finite<double>(rule);
  }
}

}  // namespace
}  // namespace muster::detail
