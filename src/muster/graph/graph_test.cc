#include "muster/graph.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/torch.h>

#include "muster/error.h"
#include "muster/graph/graph_node.h"
#include "muster/ops.h"
#include "muster/testing/message_of.h"

namespace muster {
namespace {

using detail::testing::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Graph, AnOperatorThatNobodyKnowsIsRefusedWithTheNearestName) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {2});
  EXPECT_THAT(message_of<InvalidArgument>([&] { graph.add("aten::lineer", {x}); }),
              AllOf(HasSubstr("graph_test.cc:"), HasSubstr("aten::lineer; did you mean aten::linear?")));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                graph.add("aten::add.Tenser", {x, x});
              }),
              HasSubstr("aten::add.Tensor"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { graph.add("relu", {x}); }),
              HasSubstr("there is no operator relu"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { graph.add("", {x}); }), HasSubstr("there is no operator"));
}

TEST(Graph, WhatOnlyALineOfAScriptCanCallIsRefused) {
  Graph graph;
  std::set<std::string> refused;
  for (const auto& known : torch::jit::getAllOperators()) {
    if (known->hasOperation() && !known->schema().is_vararg()) continue;
    const std::string& name = known->schema().name();
    if (!known->schema().overload_name().empty() || !refused.insert(name).second) continue;
    EXPECT_THAT(message_of<InvalidArgument>([&] { graph.add(name); }),
                HasSubstr(name + " is a part of scripts"));
  }
  EXPECT_TRUE(refused.contains("prim::Print"));
  EXPECT_EQ(graph.size(), 0);
}

TEST(Graph, ArgumentsThatTheSchemaDoesNotTakeAreRefused) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {2, 3});
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                graph.add("aten::relu", {x, 3});
              }),
              HasSubstr("2 arguments are given, where it has 1"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { graph.add("aten::relu"); }),
              HasSubstr("the argument 'self' is missing"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                graph.add("aten::softmax.int", {x, "one"});
              }),
              HasSubstr("the argument 'dim' is str, where it takes a int"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                graph.add("aten::softmax.int", {x}, {{"dmi", 1}});
              }),
              HasSubstr("no argument 'dmi'; did you mean dim?"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                graph.add("aten::softmax.int", {x, 1}, {{"dim", 1}});
              }),
              HasSubstr("given twice"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { graph.add("aten::relu", {Output()}); }),
              HasSubstr("an undefined output"));
  const std::string all = message_of<InvalidArgument>([&] { graph.add("aten::add", {x, "a"}); });
  EXPECT_THAT(all, AllOf(HasSubstr("aten::add.Tensor("), HasSubstr("aten::add.Scalar(")));
  EXPECT_THAT(all, ::testing::Not(HasSubstr("aten::add.str(")))
      << "an overload that does not even take a tensor";
  EXPECT_EQ(graph.size(), 1U);
}

TEST(Graph, AnOperatorThatChangesItsArgumentsIsRefused) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {2});
  EXPECT_THAT(message_of<InvalidArgument>([&] { graph.add("aten::relu_", {x}); }),
              HasSubstr("it changes its arguments"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                graph.add("aten::add.out", {x, x}, {{"out", x}});
              }),
              HasSubstr("changes its arguments"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                graph.add("muster::assign", {x, x});
              }),
              HasSubstr("Muster's own"));
}

TEST(Graph, SizesThatDoNotFitAreRefusedWithTheNodeAndItsLine) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 4});
  const Output w = graph.variable("w", torch::zeros({3, 5}));
  EXPECT_THAT(message_of<InvalidArgument>([&] { ops::linear(x, w); }),
              AllOf(HasSubstr("node 'linear' (aten::linear, made at graph_test.cc:"),
                    HasSubstr("batch of 5040"), HasSubstr("cannot be multiplied")));
  EXPECT_FALSE(graph.find("linear").defined());
  EXPECT_EQ(ops::linear(x, graph.variable("v", torch::zeros({3, 4}))).name(), "linear:0")
      << "the name is free again";
}

TEST(Graph, OverloadsAreChosenByTheArguments) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {2, 3});
  EXPECT_EQ(graph.add("aten::add", {x, x}).op(), "aten::add.Tensor");
  EXPECT_EQ(graph.add("aten::add", {x, 1.5}).op(), "aten::add.Scalar");
  EXPECT_EQ(graph.add("aten::sum", {x}).op(), "aten::sum");
  EXPECT_EQ(graph.add("aten::sum", {x, std::vector<int64_t>{1}}).op(), "aten::sum.dim_IntList");
  EXPECT_EQ(graph.add("aten::max_pool2d", {ops::unsqueeze(x, 0), 2}).output().shape(), (Shape{1, 1, 1}));
}

TEST(Graph, NamesAreNumberedAndGivenOnesAreUnique) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {2});
  EXPECT_EQ(ops::relu(x).name(), "relu:0");
  EXPECT_EQ(ops::relu(x).name(), "relu_1:0");
  {
    const auto outer = graph.name_scope("encoder");
    EXPECT_EQ(ops::relu(x).name(), "encoder/relu:0");
    const auto inner = graph.name_scope("layer");
    EXPECT_EQ(ops::relu(x).named("hidden").name(), "encoder/layer/hidden:0");
  }
  EXPECT_EQ(graph.find("encoder/layer/hidden").op(), "aten::relu");
  EXPECT_FALSE(graph.find("encoder/layer/relu").defined());
  EXPECT_THAT(message_of<InvalidArgument>([&] { ops::relu(x).named("relu"); }),
              HasSubstr("can't be called 'relu'"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { graph.placeholder("x", at::kFloat); }),
              AllOf(HasSubstr("two nodes are called 'x'"), HasSubstr("graph_test.cc:")));
  EXPECT_EQ(graph.output("encoder/relu:0").name(), "encoder/relu:0");
  EXPECT_THAT(message_of<InvalidArgument>([&] { graph.output("encoder/rleu"); }),
              HasSubstr("did you mean encoder/relu?"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { graph.output("relu:7"); }),
              HasSubstr("has no output 7: it has 1"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { graph.output("relu:x"); }), HasSubstr("expected 'node:0'"));
}

TEST(Graph, DevicesOfScopesMerge) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {2});
  EXPECT_EQ(x.node().device(), "");
  const auto ps = graph.with_device("/job:ps/task:0");
  EXPECT_EQ(ops::relu(x).node().device(), "/job:ps/task:0");
  {
    const auto second = graph.with_device("/task:1");
    EXPECT_EQ(ops::relu(x).node().device(), "/job:ps/task:1");
    const auto by_name =
        graph.with_device([](const Node& node) { return node.op() == "aten::tanh" ? "/job:worker" : ""; });
    EXPECT_EQ(ops::tanh(x).node().device(), "/job:worker/task:1");
    EXPECT_EQ(ops::relu(x).node().device(), "/job:ps/task:1");
  }
  EXPECT_EQ(ops::relu(x).node().device(), "/job:ps/task:0");
  EXPECT_THAT(message_of<InvalidArgument>([&] { static_cast<void>(graph.with_device("ps")); }),
              HasSubstr("is not a task name"));
}

TEST(Graph, AssignmentsAndGroupsAreChecked) {
  Graph graph;
  Graph other;
  const Output x = graph.placeholder("x", at::kFloat, {2});
  const Output w = graph.variable("w", torch::zeros({2}));
  EXPECT_THAT(message_of<InvalidArgument>([&] { graph.assign(x, x); }), HasSubstr("is no variable"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { graph.assign(w, graph.placeholder("y", at::kFloat, {3})); }),
              AllOf(HasSubstr("[2]"), HasSubstr("[3]")));
  EXPECT_THAT(message_of<InvalidArgument>([&] { graph.assign(w, graph.placeholder("z", at::kLong, {2})); }),
              HasSubstr("Long"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { ops::add(x, other.placeholder("x", at::kFloat, {2})); }),
              HasSubstr("'x' is a node of another graph"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { graph.group({other.group({})}); }),
              HasSubstr("another graph"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { graph.group({Node()}); }), HasSubstr("undefined node"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { graph.constant(torch::zeros({2}).to_sparse()); }),
              HasSubstr("no dense tensor"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                graph.placeholder("huge", at::kFloat, {int64_t{1} << 40, int64_t{1} << 40});
              }),
              HasSubstr("overflow"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { Shape{-2}; }), HasSubstr("a size of a tensor is -2"));
}

TEST(Graph, AnInitialValueIsNotMadeOfOtherVariables) {
  Graph graph;
  const Output a = graph.variable("a", torch::ones({2}));
  const Output sum = ops::add(graph.read(a), graph.constant(torch::ones({2})));
  EXPECT_THAT(message_of<InvalidArgument>([&] { graph.variable("b", sum); }),
              AllOf(HasSubstr("the variable 'b' (graph_test.cc:"),
                    HasSubstr("its initial value is made of the variable 'a', which has no value either")));
  const Output noise = graph.add("aten::rand", {std::vector<int64_t>{2}}).output();
  EXPECT_NO_THROW(graph.variable("c", noise));
}

TEST(Graph, FunctionsOfOperatorsGiveAsManyOutputsAsTheyHave) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 6});
  const auto [values, indices] = ops::max(x, 1);
  EXPECT_EQ(values.shape(), (Shape{kBatch}));
  EXPECT_EQ(indices.dtype(), at::kLong);
  EXPECT_EQ(ops::chunk(x, 3, 1).size(), 3U);
  EXPECT_EQ(ops::ones(graph, {2, 3}).shape(), (Shape{2, 3}));
  EXPECT_EQ(ops::add(x, 1).shape(), x.shape());
  EXPECT_EQ(ops::mean(x).shape(), Shape({}));
}

// ---- Types and shapes.

TEST(Shapes, AreLinearInTheBatch) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 1, 28, 28});
  EXPECT_EQ(ops::flatten(x, 1).shape().to_string(), "[N, 784]");
  EXPECT_EQ(ops::flatten(x).shape().to_string(), "[784N]");
  EXPECT_EQ(ops::cat({x, ops::zeros(graph, {1, 1, 28, 28})}).shape().to_string(), "[N + 1, 1, 28, 28]");
  EXPECT_EQ(ops::view(x, {-1, 14}).shape().to_string(), "[56N, 14]");
  EXPECT_EQ(ops::matmul(ops::flatten(x, 1), ops::t(ops::flatten(x, 1))).shape().to_string(), "[N, N]");
  const Output square = ops::flatten(ops::matmul(ops::flatten(x, 1), ops::t(ops::flatten(x, 1))));
  EXPECT_EQ(square.shape().to_string(), "?") << "that of a square is not linear";
  EXPECT_EQ(square.dtype(), at::kFloat);
  EXPECT_EQ(ops::relu(square).shape().to_string(), "?") << "and what follows is unknown, too, not an error";
}

TEST(Shapes, OfModelsAreKnown) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 3, 32, 32});
  const Output w = graph.variable("w", torch::zeros({8, 3, 5, 5}));
  const Output b = graph.variable("b", torch::zeros({8}));
  const Output h = ops::conv2d(x, w, b, {2, 2}, {1, 1});
  EXPECT_EQ(h.shape().to_string(), "[N, 8, 15, 15]");
  EXPECT_EQ(ops::conv2d(x, w, b, {1, 1}, "same").shape().to_string(), "[N, 8, 32, 32]");
  EXPECT_EQ(ops::batch_norm(h, b, b, b, b, true, 0.1, 1e-5, false).shape(), h.shape());
  EXPECT_EQ(ops::layer_norm(h, {15, 15}, {}, {}).shape(), h.shape());
  EXPECT_EQ(ops::max_pool2d(h, {2, 2}).shape().to_string(), "[N, 8, 7, 7]");
  EXPECT_EQ(ops::conv_transpose2d(h, graph.variable("v", torch::zeros({8, 4, 3, 3}))).shape().to_string(),
            "[N, 4, 17, 17]");
  const Output ids = graph.placeholder("ids", at::kLong, {kBatch, 7});
  EXPECT_EQ(ops::embedding(graph.variable("e", torch::zeros({100, 16})), ids).shape().to_string(),
            "[N, 7, 16]");
  EXPECT_THAT(message_of<InvalidArgument>([&] { ops::conv2d(h, w, b); }),
              HasSubstr("to have 3 channels, but got 8 channels"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { ops::layer_norm(h, {7}, {}, {}); }),
              HasSubstr("normalized_shape"));
}

TEST(Shapes, OfWhatDependsOnDataAreUnknown) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 3});
  EXPECT_FALSE(ops::nonzero(x).shape().known());
  EXPECT_FALSE(ops::relu(ops::masked_select(x, ops::gt(x, 0))).shape().known());
  const Output unknown = graph.placeholder("u", at::kFloat);
  EXPECT_FALSE(ops::linear(unknown, x).shape().known());
  EXPECT_THAT(message_of<InvalidArgument>([&] { ops::unbind(unknown); }),
              HasSubstr("how many results it has"));
}

TEST(Shapes, AcceptWhatFitsThem) {
  EXPECT_TRUE((Shape{kBatch, 3}.accepts({5, 3})));
  EXPECT_FALSE((Shape{kBatch, 3}.accepts({5, 4})));
  EXPECT_FALSE((Shape{kBatch, 3}.accepts({3})));
  EXPECT_FALSE((Shape{kBatch, kBatch}.accepts({3, 4}))) << "the batch is the same everywhere";
  EXPECT_TRUE(Shape().accepts({1, 2, 3}));
}

// Every operator that takes one tensor, and has defaults for the rest: where the shape and type are said to
// be known, they are those that it really has.
TEST(Shapes, OfAllOperatorsWithOneTensorAreTheRealOnes) {
  const at::Tensor real = torch::rand({6, 4}) + 0.1;
  int compared = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !name.name.starts_with("aten::") || name.name.starts_with("aten::_") ||
        op->schema().is_mutable())
      continue;
    const auto& arguments = op->schema().arguments();
    const auto& returns = op->schema().returns();
    const auto has_default = [](const c10::Argument& argument) {
      return argument.default_value().has_value();
    };
    if (arguments.empty() || arguments[0].type()->kind() != c10::TypeKind::TensorType ||
        returns.size() != 1 || returns[0].type()->kind() != c10::TypeKind::TensorType ||
        !std::all_of(arguments.begin() + 1, arguments.end(), has_default))
      continue;
    torch::jit::Stack stack = {real};
    for (size_t i = 1; i < arguments.size(); ++i) stack.push_back(*arguments[i].default_value());
    try {
      op->callBoxed(stack);
    } catch (const std::exception&) {
      continue;  // not for such a tensor
    }
    Graph graph;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    Output output;
    try {
      output = graph.add(full, {graph.placeholder("x", at::kFloat, {kBatch, 4})}).output();
    } catch (const InvalidArgument& error) {
      // An operator for square matrices works for 6 x 4 only by chance.
      EXPECT_THAT(error.what(), AllOf(HasSubstr(full), HasSubstr("batch of 5040")));
      continue;
    }
    const at::Tensor result = stack.front().toTensor();
    if (output.shape().known()) {
      ++compared;
      EXPECT_TRUE(output.shape().accepts(result.sizes()))
          << full << " is " << output.shape().to_string() << ", and gave "
          << Shape(result.sizes()).to_string();
      EXPECT_EQ(output.dtype(), result.scalar_type()) << full;
    }
  }
  EXPECT_GT(compared, 100);
}

// ---- Gradients.

TEST(Gradients, AreRefusedWhereThereAreNone) {
  Graph graph;
  Graph other;
  const Output x = graph.placeholder("x", at::kFloat, {2});
  const Output w = graph.variable("w", torch::zeros({2}));
  const Output y = ops::sum(ops::mul(x, w));
  EXPECT_THAT(message_of<InvalidArgument>([&] { gradients({ops::sum(x)}, {w}); }),
              HasSubstr("no way that can be differentiated leads from w:0"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { gradients({ops::argmax(w)}, {w}); }), HasSubstr("no way"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { gradients({}, {w}); }),
              HasSubstr("nothing to differentiate"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { gradients({y}, {Output()}); }),
              HasSubstr("an output is undefined"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { gradients({y}, {other.placeholder("x", at::kFloat)}); }),
              HasSubstr("another graph"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                gradients({y}, {w}, {x, x});
              }),
              HasSubstr("2 gradients are given for 1"));
  const Output first = gradients({y}, {w}).front();
  EXPECT_THAT(message_of<InvalidArgument>([&] { gradients({ops::sum(first)}, {x}); }),
              HasSubstr("derivatives of derivatives"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { minimize(optim::SGD(), ops::sum(x)); }),
              HasSubstr("depends on no trainable variable"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { apply_gradients(optim::SGD(), {first}, {x}); }),
              HasSubstr("x:0 is no variable"));
}

TEST(Gradients, StandWhereTheirNodesStand) {
  Graph graph;
  const Output w = graph.variable("w", torch::zeros({2}));
  Output h;
  {
    const auto device = graph.with_device("/job:worker/task:1");
    h = ops::tanh(w).named("h");
  }
  const Output d = gradients({ops::sum(h)}, {w}).front();
  EXPECT_EQ(d.node().device(), "/job:worker/task:1");
  EXPECT_EQ(d.name(), "gradients/h:0");
  EXPECT_EQ(d.shape(), w.shape());
}

// A type could be taken for a number, and so for a dimension, where the overload is left open.
TEST(Ops, AFunctionIsOneOverload) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 3});
  const Output sum = ops::sum(x, at::kDouble);
  EXPECT_EQ(sum.node().op(), "aten::sum");
  EXPECT_EQ(sum.dtype(), at::kDouble);
  EXPECT_EQ(sum.shape().to_string(), "[]");
  EXPECT_EQ(ops::sum(x, {1}).node().op(), "aten::sum.dim_IntList");
}

}  // namespace
}  // namespace muster
