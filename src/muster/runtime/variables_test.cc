#include "muster/runtime/variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/log.h"
#include "muster/error.h"
#include "muster/optim/rules.h"
#include "muster/testing/message_of.h"

namespace muster::detail {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

TEST(Container, AVariableThatAnotherGraphHasWithAnotherShapeIsRefused) {
  Container container;
  Graph one;
  const Output w = one.variable("w", torch::zeros({2}));
  TaskVariable& shared = container.get(*w.get());
  shared.assign(torch::ones({2}));
  Graph same;
  EXPECT_EQ(&container.get(*same.variable("w", torch::zeros({2})).get()), &shared);
  for (const at::Tensor& initial :
       {torch::zeros({3}), torch::zeros({2, 1}), torch::zeros({2}, at::kDouble)}) {
    Graph other;
    const Output another = other.variable("w", initial);
    EXPECT_THAT(message_of([&] { container.get(*another.get()); }),
                AllOf(HasSubstr("node 'w' (muster::variable, made at variables_test.cc:"),
                      HasSubstr("is Float [2] here, of another graph, and this graph says " +
                                std::string(c10::toString(initial.scalar_type())) + " " +
                                Shape(initial.sizes()).to_string()),
                      HasSubstr("Session::Options::container")));
  }
  EXPECT_TRUE(torch::equal(shared.read(), torch::ones({2})));
}

TEST(Container, AVariableWithoutAValueIsWhatTheLastGraphSays) {
  Container container;
  Graph wrong;
  TaskVariable& variable = container.get(*wrong.variable("w", torch::zeros({3})).get());
  Graph right;
  container.get(*right.variable("w", torch::zeros({2})).get());
  EXPECT_THAT(message_of([&] { variable.assign(torch::zeros({3})); }),
              HasSubstr("the variable 'w' is given a value of type Float and sizes [3]; expected Float [2]"));
  variable.assign(torch::zeros({2}));
}

TEST(Container, AVariableWhoseShapeNobodyKnowsTakesAny) {
  Container container;
  Graph graph;
  const Output w = graph.variable("w", graph.placeholder("x", at::kLong, Shape()));
  ASSERT_EQ(w.shape().to_string(), "?");
  TaskVariable& variable = container.get(*w.get());
  for (const int64_t size : {1, 3}) variable.assign(torch::zeros({size, 1}, at::kLong));
  Graph other;
  container.get(*other.variable("w", torch::zeros({3, 1}, at::kLong)).get());
  container.get(*w.get());
  EXPECT_THAT(message_of([&] {
                variable.assign(torch::zeros({1, 1}, at::kLong));
              }),
              HasSubstr("expected Long [3, 1]"))
      << "somebody counts on it now";
}

// Clients that train together with different optimizers, or a second phase of training with another one.
TEST(TaskVariable, AnotherRuleBeginsAnewAndIsSaid) {
  std::string lines;
  set_log_sink([&lines](std::string_view line) { lines += line; });
  TaskVariable variable("w");
  variable.assign(torch::zeros({2}));
  const auto heavy = sgd({.lr = 0.1, .momentum = 0.9});
  const auto other_rate = sgd({.lr = 0.2, .momentum = 0.9});
  const auto plain = sgd({.lr = 0.1});
  const torch::Tensor gradient = torch::ones({2});
  variable.update(*heavy, gradient, std::nullopt);
  variable.update(*other_rate, gradient, 0.1);
  EXPECT_TRUE(torch::allclose(variable.read(), torch::full({2}, -0.29))) << "the same rule: 0.1 and 0.19";
  EXPECT_EQ(lines, "");
  variable.update(*plain, gradient, std::nullopt);
  EXPECT_THAT(lines, AllOf(HasSubstr("the variable 'w' is updated by 'sgd"), HasSubstr("momentum=0.9"),
                           HasSubstr("the same optimizer")));
  lines.clear();
  variable.update(*heavy, gradient, std::nullopt);
  EXPECT_TRUE(torch::allclose(variable.read(), torch::full({2}, -0.49))) << "without the momentum of before";
  EXPECT_EQ(lines, "") << "it was said before";
  set_log_sink({});
}

}  // namespace
}  // namespace muster::detail
