#include "muster/control_flow.h"

#include <unistd.h>

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include "muster/error.h"
#include "muster/ops.h"
#include "muster/runtime/server_test.h"
#include "muster/session.h"
#include "muster/testing/message_of.h"
#include "muster/trace.h"

namespace muster {
namespace {

using detail::testing::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A weight that is squared or negated as the sign of a number says, and its derivative.
struct Branching {
  explicit Branching(Graph& graph) {
    x = graph.placeholder("x", at::kFloat, {});
    w = graph.variable("w", torch::tensor({2.F, 3.F}));
    const Output factor = graph.constant(torch::tensor({10.F, 100.F}));
    y = cond(
            ops::gt(x, 0.0), [&] { return std::vector{ops::mul(ops::mul(w, w), factor)}; },
            [&] { return std::vector{ops::neg(ops::mul(w, x))}; })
            .front();
    gradient = gradients({ops::sum(y)}, {w}).front();
  }

  void check(Session& session) const {
    const auto chosen = session.run({y, gradient}, {{x, torch::tensor(1.F)}});
    EXPECT_TRUE(chosen[0].equal(torch::tensor({40.F, 900.F}))) << chosen[0];
    EXPECT_TRUE(chosen[1].equal(torch::tensor({40.F, 600.F}))) << chosen[1];
    const auto other = session.run({y, gradient}, {{x, torch::tensor(-5.F)}});
    EXPECT_TRUE(other[0].equal(torch::tensor({10.F, 15.F}))) << other[0];
    EXPECT_TRUE(other[1].equal(torch::tensor({5.F, 5.F}))) << other[1];
  }

  Output x, w, y, gradient;
};

TEST(ControlFlow, RunsTheBranchThatIsChosenAndDifferentiatesIt) {
  Graph graph;
  const Branching branching(graph);
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  branching.check(session);
  Session apart("local", graph,
                {.fold_constants = false, .share_subexpressions = false, .join_gradients = false});
  apart.run({}, {}, {graph.initializer()});
  branching.check(apart);
}

TEST(ControlFlow, IsOneNodeOfATask) {
  const TestServers cluster(2);
  Graph graph;
  const auto device = graph.with_device("/job:task/task:1");
  const Branching branching(graph);
  Session session(cluster.target(), graph, {.secret = "test"});
  session.run({}, {}, {graph.initializer()});
  branching.check(session);
}

TEST(ControlFlow, OnlyTheBranchThatIsChosenIsRun) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {});
  const Output y = cond(
                       ops::gt(x, 0.0), [&] { return std::vector{graph.print(x, "positive ")}; },
                       [&] { return std::vector{graph.print(x, "negative ")}; })
                       .front();
  Session session("local", graph);
  ::testing::internal::CaptureStderr();
  session.run({y}, {{x, torch::tensor(2.5F)}});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "positive [] 2.5\n");
}

// x is doubled until it is at least 100, and the number of times is counted; the derivative is 2 to the
// count.
TEST(ControlFlow, LoopsAsLongAsTheConditionSays) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kDouble, {});
  const Output limit = graph.constant(100.0, at::kDouble);
  const auto results = while_loop(
      {x, graph.constant(0, at::kLong)}, [&](const auto& v) { return ops::lt(v[0], limit); },
      [&](const auto& v) {
        return std::vector{ops::mul(v[0], 2), ops::add(v[1], 1)};
      });
  const Output slope = gradients({results[0]}, {x}).front();
  Session session("local", graph);
  const auto values = session.run({results[0], results[1], slope}, {{x, torch::tensor(3.0, at::kDouble)}});
  EXPECT_EQ(values[0].item<double>(), 192);
  EXPECT_EQ(values[1].item<int64_t>(), 6);
  EXPECT_EQ(values[2].item<double>(), 64);
  EXPECT_EQ(session.run({results[1]}, {{x, torch::tensor(300.0, at::kDouble)}})[0].item<int64_t>(), 0)
      << "a loop may not run at all";
}

TEST(ControlFlow, LoopVariablesMayGrow) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {1});
  const auto grown = while_loop(
      {x}, [&](const auto& v) { return ops::lt(ops::sum(v[0]), 8.0); },
      [&](const auto& v) {
        return std::vector{ops::cat({v[0], v[0]}, 0)};
      });
  EXPECT_FALSE(grown[0].shape().known());
  Session session("local", graph);
  EXPECT_TRUE(session.run({grown[0]}, {{x, torch::ones({1})}})[0].equal(torch::ones({8})));
}

// An LSTM cell over as many steps as a number says, against the same in a plain loop.
TEST(ControlFlow, TrainsThroughALoop) {
  torch::manual_seed(1);
  const torch::Tensor initial = torch::rand({4, 4}) - 0.5;
  const torch::Tensor input = torch::rand({2, 4});
  Graph graph;
  const Output w = graph.variable("w", initial);
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 4});
  const Output steps = graph.placeholder("steps", at::kLong, {});
  const auto end = while_loop(
      {x, graph.constant(0, at::kLong)}, [&](const auto& v) { return ops::lt(v[1], steps); },
      [&](const auto& v) {
        return std::vector{ops::tanh(ops::matmul(v[0], w)), ops::add(v[1], 1)};
      });
  const Output loss = ops::sum(ops::mul(end[0], end[0]));
  const Node train = minimize(optim::SGD({.lr = 0.1}), loss);
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});

  torch::Tensor plain = initial.clone().requires_grad_();
  for (const int64_t count : {1, 5, 3}) {
    const double in_graph =
        session.run({loss}, {{x, input}, {steps, torch::tensor(count)}}, {train})[0].item<double>();
    torch::Tensor state = input;
    for (int64_t i = 0; i < count; ++i) state = torch::tanh(state.matmul(plain));
    torch::Tensor expected = (state * state).sum();
    expected.backward();
    EXPECT_NEAR(in_graph, expected.item<double>(), 1e-6);
    const torch::NoGradGuard guard;
    plain.sub_(plain.grad(), 0.1);
    plain.mutable_grad() = torch::Tensor();
  }
  EXPECT_TRUE(torch::allclose(session.run({w})[0], plain, 1e-6, 1e-7));
}

TEST(ControlFlow, BranchesInLoopsInBranchesAreSavedAndLoaded) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kLong, {});
  // How many steps the Collatz sequence of x takes to 1, or -1 for what is not positive.
  const Output count =
      cond(
          ops::gt(x, 0),
          [&] {
            return std::vector{while_loop(
                {x, graph.constant(0, at::kLong)}, [&](const auto& v) { return ops::ne(v[0], 1); },
                [&](const auto& v) {
                  const Output next =
                      cond(
                          ops::eq(ops::remainder(v[0], 2), 0),
                          [&] { return std::vector{ops::floor_divide(v[0], graph.constant(2, at::kLong))}; },
                          [&] { return std::vector{ops::add(ops::mul(v[0], 3), 1)}; })
                          .front();
                  return std::vector{next, ops::add(v[1], 1)};
                })[1]};
          },
          [&] { return std::vector{graph.constant(-1, at::kLong)}; })
          .front()
          .named("count");
  EXPECT_EQ(count.name(), "count:0");
  const std::string file = ::testing::TempDir() + "collatz" + std::to_string(getpid()) + ".pb";
  graph.save(file);
  const Graph loaded = Graph::load(file);
  for (const Graph* each : {const_cast<const Graph*>(&graph), &loaded}) {
    Session session("local", *each);
    const Output result = each->output("count");
    const Output start = each->output("x");
    EXPECT_EQ(session.run({result}, {{start, torch::tensor(27)}})[0].item<int64_t>(), 111);
    EXPECT_EQ(session.run({result}, {{start, torch::tensor(-3)}})[0].item<int64_t>(), -1);
  }
}

// What the branch depends on has no derivative, wherever it is computed.
TEST(ControlFlow, TheDerivativeDoesNotGoThroughThePredicate) {
  for (const bool join : {true, false}) {
    Graph graph;
    const Output x = graph.placeholder("x", at::kFloat, {});
    const auto y = cond(
        ops::gt(x, 0.0), [&] { return std::vector{ops::mul(x, x)}; },
        [&] { return std::vector{ops::neg(x)}; });
    const auto dx = gradients(y, {x});
    Session session("local", graph, {.join_gradients = join});
    EXPECT_EQ(session.run(dx, {{x, torch::tensor(3.F)}}).front().item<float>(), 6);
    EXPECT_EQ(session.run(dx, {{x, torch::tensor(-3.F)}}).front().item<float>(), -1);
  }
}

TEST(ControlFlow, RefusesALoopVariableThatChangesItsType) {
  Graph graph;
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                while_loop(
                    {graph.constant(torch::ones({1}))},
                    [&](const auto& v) { return ops::lt(ops::sum(v[0]), 5.0); },
                    [&](const auto& v) { return std::vector{ops::to(v[0], torch::kDouble)}; });
              }),
              HasSubstr("its body makes Double of loop variable 0, which is Float"));
}

TEST(ControlFlow, RefusesWhatCantBeInside) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {});
  const Output v = graph.variable("v", torch::zeros({}));
  const auto one = [&] { return std::vector{x}; };
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { cond(x, one, [&] { return std::vector{graph.assign(v, x)}; }); }),
      AllOf(HasSubstr("muster::assign"), HasSubstr("can't be inside")));
  EXPECT_THAT(message_of<InvalidArgument>([&] { cond(x, one, [&] {
                                                  return std::vector{x, x};
                                                }); }),
              HasSubstr("one branch gives 1 results, the other 2"));
  EXPECT_THAT(message_of<InvalidArgument>(
                  [&] { cond(x, one, [&] { return std::vector{graph.constant(1, at::kLong)}; }); }),
              AllOf(HasSubstr("Float"), HasSubstr("Long")));
  EXPECT_THAT(message_of<InvalidArgument>([&] { cond(Output(), one, one); }),
              HasSubstr("the predicate is an undefined output"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                while_loop(
                    {x}, [&](const auto& a) { return a[0]; },
                    [&](const auto& a) {
                      return std::vector{a[0], a[0]};
                    });
              }),
              HasSubstr("its body gives 2 results for 1 loop variables"));
  const Output y = cond(graph.placeholder("two", at::kFloat, {2}), one, one).front();
  Session session("local", graph);
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                session.run({y}, {{graph.output("two"), torch::ones({2})}, {x, torch::tensor(1.F)}});
              }),
              HasSubstr("what decides has 2 elements"));
}

TEST(ControlFlow, ALoopWithoutAnEndEndsWithItsRun) {
  const TestServers cluster(1);
  Graph graph;
  const Output x = graph.constant(1.0);
  const Output y = while_loop(
                       {x}, [&](const auto& v) { return ops::gt(v[0], 0.0); },
                       [&](const auto& v) { return std::vector{ops::mul(v[0], 1.0)}; })
                       .front();
  Session session(cluster.target(), graph, {.secret = "test", .timeout = std::chrono::milliseconds(300)});
  EXPECT_THROW(session.run({y}), DeadlineExceeded);
  EXPECT_EQ(session.run({x})[0].item<float>(), 1) << "the task lives";
}

// A module of Python's that does something else for positive sums, and loops as often as its argument says.
std::string script_with_flow() {
  torch::jit::Module inner("Inner");
  inner.register_parameter("weight", torch::tensor({{0.5F, -1.F}, {2.F, 0.25F}}, torch::requires_grad()),
                           /*is_buffer=*/false);
  inner.define("def forward(self, x):\n  return torch.matmul(x, self.weight)\n");
  torch::jit::Module module("Flow");
  module.register_module("inner", inner);
  module.register_buffer("offset", torch::tensor({1.F, 2.F}));
  module.define(R"(
def forward(self, x, rounds):
  y = x
  for i in range(int(rounds)):
    y = torch.tanh(self.inner.forward(y))
  if bool(y.sum() > 0):
    return y + self.offset, y.sum()
  return y * y, y.sum()
)");
  std::string file = ::testing::TempDir() + "flow" + std::to_string(getpid()) + ".pt";
  module.save(file);
  return file;
}

TEST(ScriptNode, RunsControlFlowAndIsTrained) {
  const std::string file = script_with_flow();
  torch::jit::Module plain = torch::jit::load(file);
  Graph graph;
  const TracedModule net = import_as_one_node(graph, file, {torch::ones({2, 2}), torch::tensor(1)}, "flow");
  ASSERT_EQ(net.outputs.size(), 2);
  EXPECT_EQ(graph.find("flow.inner.weight").op(), "muster::variable");
  const Output loss = ops::sum(net.outputs[0]);
  const Node train = minimize(optim::SGD({.lr = 0.1}), loss);
  const std::string saved = ::testing::TempDir() + "flow" + std::to_string(getpid()) + ".pb";
  graph.save(saved);
  EXPECT_EQ(Graph::load(saved).size(), graph.size());

  const TestServers cluster(1);
  Session session(cluster.target(), graph, {.secret = "test"});
  session.run({}, {}, {graph.initializer()});
  torch::Tensor weight = plain.attr("inner").toModule().attr("weight").toTensor();
  for (const double sign : {1.0, -1.0}) {
    for (const int64_t rounds : {0, 1, 4}) {
      const torch::Tensor x = sign * torch::tensor({{1.F, 0.5F}, {0.25F, 2.F}});
      const auto results = session.run({loss, net.outputs[1]},
                                       {{net.inputs[0], x}, {net.inputs[1], torch::tensor(rounds)}}, {train});
      const auto expected = plain.forward({x, torch::tensor(rounds)}).toTuple();
      torch::Tensor plain_loss = expected->elements()[0].toTensor().sum();
      EXPECT_NEAR(results[0].item<double>(), plain_loss.item<double>(), 1e-5);
      EXPECT_NEAR(results[1].item<double>(), expected->elements()[1].toTensor().item<double>(), 1e-5);
      if (rounds == 0) continue;
      plain_loss.backward();
      const torch::NoGradGuard guard;
      weight.sub_(weight.grad(), 0.1);
      weight.mutable_grad() = torch::Tensor();
    }
  }
  EXPECT_TRUE(session.run({graph.output("flow.inner.weight")})[0].allclose(weight, 1e-5, 1e-6));
}

}  // namespace
}  // namespace muster
