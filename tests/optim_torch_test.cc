// The update rules against torch::optim, which they promise to equal: 100 steps with random gradients.
//
// Bits can't be the same: torch fuses some multiplications with additions and divides where we multiply by
// the inverse. In float32 that moves a step by a few parts in 1e7 of itself, and now and then a parameter
// rounds to its neighbour, 6e-8 to 1.2e-7 of it away; over 100 steps a few of these add up, to less than
// 1e-6. It is relative to the largest value that the parameter had on its way, and to 1, its scale at the
// start, if that is more: one that passes near 0 keeps the rounding of where it came from. float64 has the
// same in parts of 1e-16.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/optim/rules.h"

namespace muster::detail {
namespace {

using Optimizer = std::unique_ptr<torch::optim::Optimizer>;
using MakeOptimizer = std::function<Optimizer(std::vector<torch::Tensor>)>;

constexpr int kSteps = 100;

struct Type {
  DType dtype;
  torch::ScalarType torch_dtype;
  double tolerance;
};
constexpr Type kTypes[] = {{DType::kFloat32, torch::kFloat32, 1e-6},
                           {DType::kFloat64, torch::kFloat64, 1e-12}};

void expect_equal(const UpdateRulePtr& rule, const MakeOptimizer& make_optimizer, const Type& type,
                  int64_t count) {
  const auto options = torch::TensorOptions(type.torch_dtype);
  torch::manual_seed(count);
  auto theirs = torch::randn({count}, options).requires_grad_();
  auto ours = theirs.detach().clone();
  const auto optimizer = make_optimizer({theirs});
  std::vector<torch::Tensor> states;
  UpdateRange range = {
      .dtype = type.dtype, .parameter = ours.data_ptr(), .count = static_cast<size_t>(count)};
  for (size_t i = 0; i < rule->states(); ++i) {
    states.push_back(torch::zeros({count}, options));
    range.states[i] = states[i].data_ptr();
  }
  auto largest = torch::ones({count}, options);
  for (int step = 1; step <= kSteps; ++step) {
    const auto gradient = torch::randn({count}, options);
    theirs.mutable_grad() = gradient.clone();
    optimizer->step();
    largest = torch::max(largest, theirs.detach().abs());
    range.gradient = gradient.data_ptr();
    rule->apply(range, {.step = step, .lr = rule->lr()});
  }
  const auto difference = (ours - theirs.detach()).abs() / largest;
  EXPECT_LE(difference.max().item<double>(), type.tolerance)
      << fmt::format("{}, {} elements of {}", rule->name(), count, name_of(type.dtype));
}

template <typename TheirRule, typename TheirOptions>
void expect_equal(const UpdateRulePtr& rule, const TheirOptions& options) {
  const MakeOptimizer make_optimizer = [&](std::vector<torch::Tensor> parameters) {
    return std::make_unique<TheirRule>(std::move(parameters), options);
  };
  for (const Type& type : kTypes) {
    for (const int64_t count : {1, 17, 1000}) expect_equal(rule, make_optimizer, type, count);
  }
}

TEST(OptimTorch, Sgd) {
  using torch::optim::SGD;
  using torch::optim::SGDOptions;
  expect_equal<SGD>(sgd({.lr = 0.05}), SGDOptions(0.05));
  expect_equal<SGD>(sgd({.lr = 0.05, .weight_decay = 0.1}), SGDOptions(0.05).weight_decay(0.1));
  expect_equal<SGD>(sgd({.lr = 0.05, .momentum = 0.9}), SGDOptions(0.05).momentum(0.9));
  expect_equal<SGD>(sgd({.lr = 0.05, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.1}),
                    SGDOptions(0.05).momentum(0.9).dampening(0.3).weight_decay(0.1));
  expect_equal<SGD>(sgd({.lr = 0.05, .momentum = 0.9, .nesterov = true}),
                    SGDOptions(0.05).momentum(0.9).nesterov(true));
  expect_equal<SGD>(sgd({.lr = 0.05, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}),
                    SGDOptions(0.05).momentum(0.9).weight_decay(0.1).nesterov(true));
}

TEST(OptimTorch, Adam) {
  using torch::optim::Adam;
  using torch::optim::AdamOptions;
  expect_equal<Adam>(adam(), AdamOptions());
  expect_equal<Adam>(adam({.lr = 0.01, .betas = {0.8, 0.99}, .eps = 1e-3}),
                     AdamOptions(0.01).betas({0.8, 0.99}).eps(1e-3));
  expect_equal<Adam>(adam({.weight_decay = 0.1}), AdamOptions().weight_decay(0.1));
  expect_equal<Adam>(adam({.betas = {0.9, 0.9}, .amsgrad = true}),
                     AdamOptions().betas({0.9, 0.9}).amsgrad(true));
  expect_equal<Adam>(adam({.weight_decay = 0.1, .amsgrad = true}),
                     AdamOptions().weight_decay(0.1).amsgrad(true));
}

TEST(OptimTorch, AdamW) {
  using torch::optim::AdamW;
  using torch::optim::AdamWOptions;
  expect_equal<AdamW>(adamw(), AdamWOptions());
  expect_equal<AdamW>(adamw({.lr = 0.01, .weight_decay = 0.1}), AdamWOptions(0.01).weight_decay(0.1));
  expect_equal<AdamW>(adamw({.betas = {0.9, 0.9}, .amsgrad = true}),
                      AdamWOptions().betas({0.9, 0.9}).amsgrad(true));
}

TEST(OptimTorch, Adagrad) {
  using torch::optim::Adagrad;
  using torch::optim::AdagradOptions;
  expect_equal<Adagrad>(adagrad(), AdagradOptions());
  expect_equal<Adagrad>(adagrad({.lr = 0.1, .lr_decay = 0.02}), AdagradOptions(0.1).lr_decay(0.02));
  expect_equal<Adagrad>(adagrad({.initial_accumulator_value = 0.5}),
                        AdagradOptions().initial_accumulator_value(0.5));
  expect_equal<Adagrad>(adagrad({.lr_decay = 0.02, .weight_decay = 0.1, .initial_accumulator_value = 0.5}),
                        AdagradOptions().lr_decay(0.02).weight_decay(0.1).initial_accumulator_value(0.5));
}

TEST(OptimTorch, RmsProp) {
  using torch::optim::RMSprop;
  using torch::optim::RMSpropOptions;
  expect_equal<RMSprop>(rmsprop({.lr = 1e-3}), RMSpropOptions(1e-3));
  expect_equal<RMSprop>(rmsprop({.lr = 1e-3, .weight_decay = 0.1}), RMSpropOptions(1e-3).weight_decay(0.1));
  expect_equal<RMSprop>(rmsprop({.lr = 1e-3, .momentum = 0.9}), RMSpropOptions(1e-3).momentum(0.9));
  expect_equal<RMSprop>(rmsprop({.lr = 1e-3, .centered = true}), RMSpropOptions(1e-3).centered(true));
  expect_equal<RMSprop>(
      rmsprop({.lr = 1e-3, .alpha = 0.9, .weight_decay = 0.1, .momentum = 0.5, .centered = true}),
      RMSpropOptions(1e-3).alpha(0.9).weight_decay(0.1).momentum(0.5).centered(true));
}

}  // namespace
}  // namespace muster::detail
