#include "muster/optim/row_rules.h"

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/optim/rules.h"

namespace muster::detail {
namespace {

using ::testing::HasSubstr;
using ::testing::Throws;

constexpr size_t kWidth = 19;
constexpr int kUpdates = 100;

std::vector<float> random_values(size_t count, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// A row as a table would keep it.
struct Row {
  Row(RowRulePtr the_rule, std::vector<float> start)
      : rule(std::move(the_rule)), values(std::move(start)), states(rule->states() * values.size()) {}

  void update(const std::vector<float>& gradient) {
    rule->apply({.values = values.data(), .states = states.data(), .width = values.size()}, gradient.data(),
                ++updates);
  }

  const RowRulePtr rule;
  std::vector<float> values;
  std::vector<float> states;
  int64_t updates = 0;
};

// What a rule must do to one element, in double.
struct RowElement {
  double p, g;
  double s[2];
};
using RowFormula = std::function<void(RowElement&, double update)>;

void expect_formula(const RowRulePtr& rule, const RowFormula& formula, double tolerance = 4e-6) {
  Row subject(rule, random_values(kWidth, 1));
  std::vector<RowElement> expected(kWidth);
  for (size_t i = 0; i < kWidth; ++i) expected[i] = {.p = subject.values[i]};
  for (int update = 1; update <= kUpdates; ++update) {
    const auto gradient = random_values(kWidth, 100 + static_cast<uint64_t>(update));
    subject.update(gradient);
    for (size_t i = 0; i < kWidth; ++i) {
      expected[i].g = gradient[i];
      formula(expected[i], update);
    }
  }
  for (size_t i = 0; i < kWidth; ++i)
    EXPECT_NEAR(subject.values[i], expected[i].p, tolerance) << rule->to_string() << ", element " << i;
}

TEST(RowRules, SgdEqualsItsFormula) {
  expect_formula(row_rule(sgd({.lr = 0.05})), [](RowElement& e, double) { e.p -= 0.05 * e.g; });
}

TEST(RowRules, AdagradEqualsItsFormula) {
  expect_formula(row_rule(adagrad({.lr = 0.05, .initial_accumulator_value = 0.1, .eps = 1e-3})),
                 [](RowElement& e, double update) {
                   if (update == 1) e.s[0] = 0.1;
                   e.s[0] += e.g * e.g;
                   e.p -= 0.05 * e.g / (std::sqrt(e.s[0]) + 1e-3);
                 });
}

TEST(RowRules, AdamEqualsItsFormula) {
  expect_formula(row_rule(adam({.lr = 0.01, .betas = {0.8, 0.99}, .eps = 1e-3})),
                 [](RowElement& e, double update) {
                   e.s[0] = 0.8 * e.s[0] + 0.2 * e.g;
                   e.s[1] = 0.99 * e.s[1] + 0.01 * e.g * e.g;
                   const double mean = e.s[0] / (1 - std::pow(0.8, update));
                   const double square = e.s[1] / (1 - std::pow(0.99, update));
                   e.p -= 0.01 * mean / (std::sqrt(square) + 1e-3);
                 });
}

// The paper's algorithm, with the row as a function of z and n alone, from the first update on.
TEST(RowRules, FtrlEqualsItsFormula) {
  const double alpha = 0.1, beta = 0.7, l1 = 0.4, l2 = 0.3;
  expect_formula(
      ftrl({.alpha = alpha, .beta = beta, .l1 = l1, .l2 = l2}),
      [=](RowElement& e, double update) {
        const double sign = e.p > 0 ? 1 : -1;
        if (update == 1) e.s[0] = -sign * (std::abs(e.p) * (beta / alpha + l2) + l1);
        const double before = std::sqrt(e.s[1]);
        e.s[1] += e.g * e.g;
        e.s[0] += e.g - (std::sqrt(e.s[1]) - before) / alpha * e.p;
        if (std::abs(e.s[0]) <= l1) {
          e.p = 0;
        } else {
          e.p = -(e.s[0] - (e.s[0] > 0 ? l1 : -l1)) / ((beta + std::sqrt(e.s[1])) / alpha + l2);
        }
      },
      2e-5);
}

TEST(RowRules, FtrlKeepsTheInitialValueUnderAGradientOfZero) {
  Row subject(ftrl({.l1 = 0.1, .l2 = 0.1}), {0.5f, -0.25f, 0.0f});
  subject.update({0, 0, 0});
  EXPECT_NEAR(subject.values[0], 0.5, 1e-6);
  EXPECT_NEAR(subject.values[1], -0.25, 1e-6);
  EXPECT_EQ(subject.values[2], 0);
}

TEST(RowRules, FtrlMakesSmallWeightsZero) {
  Row subject(ftrl({.alpha = 0.1, .l1 = 1}), {0.0f, 0.0f});
  for (int i = 0; i < 10; ++i) subject.update({i % 2 == 0 ? 0.1f : -0.1f, 0.5f});
  EXPECT_EQ(subject.values[0], 0);
  EXPECT_LT(subject.values[1], 0);
}

TEST(RowRules, FtrlDoesNotHideANan) {
  Row subject(ftrl({.l1 = 1}), {0.5f});
  subject.update({std::numeric_limits<float>::quiet_NaN()});
  EXPECT_TRUE(std::isnan(subject.values[0]));
}

// A table of rows that are all in every batch is a dense parameter.
void expect_dense(const UpdateRulePtr& dense) {
  const RowRulePtr rule = row_rule(dense);
  constexpr size_t kRows = 5;
  std::vector<float> parameter = random_values(kRows * kWidth, 2);
  std::vector<std::vector<float>> states(dense->states(), std::vector<float>(parameter.size()));
  std::vector<Row> rows;
  for (size_t r = 0; r < kRows; ++r) {
    const auto begin = parameter.begin() + static_cast<ptrdiff_t>(r * kWidth);
    rows.emplace_back(rule, std::vector<float>(begin, begin + kWidth));
  }
  for (int step = 1; step <= kUpdates; ++step) {
    const auto gradient = random_values(parameter.size(), 200 + static_cast<uint64_t>(step));
    UpdateRange range = {
        .parameter = parameter.data(), .gradient = gradient.data(), .count = parameter.size()};
    for (size_t i = 0; i < states.size(); ++i) range.states[i] = states[i].data();
    dense->apply(range, {.step = step, .lr = dense->lr()});
    for (size_t r = 0; r < kRows; ++r) {
      const auto begin = gradient.begin() + static_cast<ptrdiff_t>(r * kWidth);
      rows[r].update(std::vector<float>(begin, begin + kWidth));
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    const auto begin = parameter.begin() + static_cast<ptrdiff_t>(r * kWidth);
    EXPECT_EQ(rows[r].values, std::vector<float>(begin, begin + kWidth)) << rule->to_string();
  }
}

TEST(RowRules, AssignedRowsAreWhatWasPushed) {
  Row row(assign(), random_values(kWidth, 1));
  row.update(random_values(kWidth, 2));
  row.update(random_values(kWidth, 3));
  EXPECT_EQ(row.values, random_values(kWidth, 3));
}

TEST(RowRules, RowsThatAreInEveryBatchAreADenseParameter) {
  expect_dense(sgd({.lr = 0.1}));
  expect_dense(sgd({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01}));
  expect_dense(adagrad({.lr = 0.1, .initial_accumulator_value = 0.2}));
  expect_dense(adam({.lr = 0.1, .betas = {0.9, 0.9}, .amsgrad = true}));
}

TEST(RowRules, AdamCountsEachRowsOwnUpdates) {
  Row late(row_rule(adam({.lr = 0.1})), {0.0f});
  late.update({3.0f});  // whatever the step of training, a first update moves by lr
  EXPECT_NEAR(late.values[0], -0.1, 1e-6);
}

TEST(RowRules, TextGivesTheSameRule) {
  for (const auto& rule : {row_rule(sgd({.lr = 0.1})),
                           row_rule(adagrad({.lr = 1.0 / 3, .initial_accumulator_value = 0.1, .eps = 1e-7})),
                           row_rule(adam({.lr = 3e-4, .betas = {0.8, 0.99}, .eps = 1e-6})),
                           ftrl({.alpha = 0.2, .beta = 0.5, .l1 = 1e-3, .l2 = 2}), assign()}) {
    const auto again = parse_row_rule(rule->to_string());
    EXPECT_EQ(again->to_string(), rule->to_string());
    Row one(rule, random_values(kWidth, 1));
    Row two(again, random_values(kWidth, 1));
    for (uint64_t i = 0; i < 3; ++i) {
      one.update(random_values(kWidth, i));
      two.update(random_values(kWidth, i));
    }
    EXPECT_EQ(one.values, two.values);
  }
}

void expect_row_rule_refused(const std::string& text, const std::string& reason) {
  EXPECT_THAT([&] { parse_row_rule(text); },
              Throws<InvalidArgument>(::testing::Property(&InvalidArgument::what, HasSubstr(reason))))
      << text;
}

TEST(RowRules, WhatMakesNoSenseIsRefused) {
  expect_row_rule_refused("", "not an update rule");
  expect_row_rule_refused("ftrl", "not an update rule");
  expect_row_rule_refused("ftrl alpha=1 beta=1 l1=0", "'' stands where l2=NUMBER is expected");
  expect_row_rule_refused("ftrl alpha=1 l1=0 beta=1 l2=0", "'l1=0' stands where beta=NUMBER is expected");
  expect_row_rule_refused("ftrl alpha=1 beta=fast l1=0 l2=0", "'beta=fast' stands where");
  expect_row_rule_refused("ftrl alpha=1 beta=1 l1=0 l2=0 l3=0", "nothing is expected behind l2");
  expect_row_rule_refused("ftrl alpha=0 beta=1 l1=0 l2=0", "ftrl.alpha = 0");
  expect_row_rule_refused("ftrl alpha=1 beta=1 l1=-1 l2=0", "ftrl.l1 = -1");
  expect_row_rule_refused(lamb()->to_string(), "lamb measures whole parameters");
}

}  // namespace
}  // namespace muster::detail
