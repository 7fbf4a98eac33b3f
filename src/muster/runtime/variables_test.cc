#include "muster/runtime/variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/error.h"

namespace muster::detail {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename Function>
std::string refusal_from(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

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
    EXPECT_THAT(refusal_from([&] { container.get(*another.get()); }),
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
  EXPECT_THAT(refusal_from([&] { variable.assign(torch::zeros({3})); }),
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
  EXPECT_THAT(refusal_from([&] {
                variable.assign(torch::zeros({1, 1}, at::kLong));
              }),
              HasSubstr("expected Long [3, 1]"))
      << "somebody counts on it now";
}

}  // namespace
}  // namespace muster::detail
