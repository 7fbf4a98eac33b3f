#include "muster/optim/rule_text.h"

#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/optim/rules.h"

namespace muster::detail {
namespace {

using testing::HasSubstr;

// No decimal fraction of few digits is the same as this one.
constexpr double kOdd = 0.1 + 0.2;

// Each rule with its defaults, then with one option after the other changed.
std::vector<UpdateRulePtr> all_variants() {
  return {
      sgd(),
      sgd({.lr = kOdd}),
      sgd({.momentum = kOdd}),
      sgd({.dampening = kOdd}),
      sgd({.weight_decay = kOdd}),
      sgd({.momentum = 0.9, .nesterov = true}),
      adam(),
      adam({.lr = kOdd}),
      adam({.betas = {kOdd, 0.999}}),
      adam({.betas = {0.9, kOdd}}),
      adam({.eps = kOdd}),
      adam({.weight_decay = kOdd}),
      adam({.amsgrad = true}),
      adamw(),
      adamw({.lr = kOdd}),
      adamw({.betas = {kOdd, 0.999}}),
      adamw({.betas = {0.9, kOdd}}),
      adamw({.eps = kOdd}),
      adamw({.weight_decay = kOdd}),
      adamw({.amsgrad = true}),
      adagrad(),
      adagrad({.lr = kOdd}),
      adagrad({.lr_decay = kOdd}),
      adagrad({.weight_decay = kOdd}),
      adagrad({.initial_accumulator_value = kOdd}),
      adagrad({.eps = kOdd}),
      rmsprop(),
      rmsprop({.lr = kOdd}),
      rmsprop({.alpha = kOdd}),
      rmsprop({.eps = kOdd}),
      rmsprop({.weight_decay = kOdd}),
      rmsprop({.momentum = kOdd}),
      rmsprop({.centered = true}),
      lars(),
      lars({.lr = kOdd}),
      lars({.momentum = kOdd}),
      lars({.weight_decay = kOdd}),
      lars({.trust = kOdd}),
      lars({.eps = kOdd}),
      lars({.nesterov = true}),
      lamb(),
      lamb({.lr = kOdd}),
      lamb({.betas = {kOdd, 0.999}}),
      lamb({.betas = {0.9, kOdd}}),
      lamb({.eps = kOdd}),
      lamb({.weight_decay = kOdd}),
  };
}

TEST(RuleText, NamesTheRuleAndEveryOption) {
  EXPECT_EQ(sgd({.lr = 0.1, .momentum = 0.9, .nesterov = true})->to_string(),
            "sgd lr=0.1 momentum=0.9 dampening=0 weight_decay=0 nesterov=true");
  EXPECT_EQ(adamw()->to_string(),
            "adamw lr=0.001 beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0.01 amsgrad=false");
}

TEST(RuleText, EveryOptionComesBack) {
  std::set<std::string> texts;
  size_t rules = 0;
  for (const auto& rule : all_variants()) {
    const std::string text = rule->to_string();
    const UpdateRulePtr parsed = parse_rule(text);
    EXPECT_EQ(parsed->to_string(), text);
    EXPECT_STREQ(parsed->name(), rule->name());
    EXPECT_EQ(parsed->states(), rule->states()) << text;
    texts.insert(text);
    ++rules;
  }
  EXPECT_EQ(texts.size(), rules) << "two rules with different options have the same text";
}

TEST(RuleText, NumbersComeBackToTheBit) {
  for (const double lr : {kOdd, 1.0 / 3, 5e-324, 1.7976931348623157e308, 123456789.0, 0.0}) {
    EXPECT_EQ(parse_rule(sgd({.lr = lr})->to_string())->lr(), lr);
  }
}

// The parsed rule does what the other does, not only look like it.
TEST(RuleText, AParsedRuleGivesTheSameUpdate) {
  for (const auto& rule : all_variants()) {
    auto update = [](const UpdateRule& by) {
      std::vector<float> memory = {0.5F, 0.25F, 0, 0, 0};
      const UpdateRange range = {.parameter = &memory[0],
                                 .gradient = &memory[1],
                                 .states = {&memory[2], &memory[3], &memory[4]},
                                 .count = 1};
      for (int step = 1; step <= 3; ++step) {
        const UpdateNow now = {.step = step, .lr = by.lr()};
        by.apply(range, now, by.measure(range, now));
      }
      return memory;
    };
    EXPECT_EQ(update(*parse_rule(rule->to_string())), update(*rule)) << rule->to_string();
  }
}

void expect_refused(const std::string& text, const std::string& reason) {
  try {
    parse_rule(text);
    ADD_FAILURE() << "'" << text << "' was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr(reason));
  }
}

TEST(RuleText, AnythingElseIsRefused) {
  expect_refused("", "expected sgd, adam");
  expect_refused("sdg lr=0.1", "'sdg lr=0.1' is not an update rule");
  expect_refused("sgd", "'' stands where lr=VALUE is expected");
  expect_refused("sgd ", "lr=VALUE");
  expect_refused("sgd lr=0.1", "momentum=VALUE");
  expect_refused("sgd momentum=0.1", "'momentum=0.1' stands where lr=VALUE");
  expect_refused("sgd lr=fast", "lr=VALUE");
  expect_refused("sgd lr=", "lr=VALUE");
  expect_refused("sgd lr", "lr=VALUE");
  expect_refused("sgd lr=0.1x", "lr=VALUE");
  expect_refused("sgd  lr=0.1", "lr=VALUE");
  expect_refused(sgd()->to_string() + " ", "nothing is expected behind nesterov=false");
  expect_refused(sgd()->to_string() + " lr=1", "nothing is expected");
  expect_refused("sgd lr=0.1 momentum=0 dampening=0 weight_decay=0 nesterov=1", "nesterov=VALUE");
  expect_refused("sgd lr=0.1 momentum=2 dampening=0 weight_decay=0 nesterov=false", "sgd.momentum = 2");
  expect_refused("sgd lr=nan momentum=0 dampening=0 weight_decay=0 nesterov=false", "sgd.lr = nan");
}

}  // namespace
}  // namespace muster::detail
