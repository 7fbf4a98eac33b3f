#include "muster/session.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/script.h>
#include <torch/torch.h>

#include "muster/error.h"
#include "muster/ops.h"
#include "muster/testing/message_of.h"
#include "muster/trace.h"

namespace muster {
namespace {

using detail::testing::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(Session, ComputesWhatIsFetchedFromWhatIsFed) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 2});
  const Output y = ops::add(ops::mul(x, 2), graph.constant(torch::ones({2})));
  Session session("local", graph);
  const auto results = session.run({y, x}, {{x, torch::tensor({{1.F, 2.F}})}});
  EXPECT_TRUE(results[0].equal(torch::tensor({{3.F, 5.F}})));
  EXPECT_TRUE(results[1].equal(torch::tensor({{1.F, 2.F}})));
  EXPECT_TRUE(
      session.run({ops::relu(y)}, {{y, torch::tensor({{-1.F, 2.F}})}})[0].equal(torch::tensor({{0.F, 2.F}})))
      << "any output can be fed";
}

TEST(Session, AGradientThatIsNotFiniteChangesNothing) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {});
  const Output w = graph.variable("w", torch::ones({100'000}));
  const Node train = minimize(optim::SGD({.lr = 0.1}), ops::sum(ops::mul(w, x)));
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  for (const float value : {INFINITY, -INFINITY, NAN})
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  session.run({}, {{x, torch::tensor(value)}}, {train});
                }),
                AllOf(HasSubstr("variable 'w' is not finite"), HasSubstr("left as it was")));
  EXPECT_TRUE(session.run({w})[0].equal(torch::ones({100'000})));
  session.run({}, {{x, torch::tensor(1.F)}}, {train});
  EXPECT_TRUE(session.run({w})[0].allclose(torch::full({100'000}, 0.9F)));
}

TEST(Session, RefusesWhatTheGraphDoesNotHave) {
  Graph graph;
  Graph other;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 2});
  const Output y = ops::relu(x);
  Session session("local", graph);
  const torch::Tensor value = torch::ones({1, 2});
  EXPECT_THAT(message_of<InvalidArgument>([&] { session.run({y}); }),
              AllOf(HasSubstr("node 'x'"), HasSubstr("feed it")));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                session.run({y}, {{x, torch::ones({1, 3})}});
              }),
              AllOf(HasSubstr("'x:0' is fed a tensor of sizes [1, 3]"), HasSubstr("[N, 2]")));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                session.run({y}, {{x, torch::ones({1, 2}, at::kLong)}});
              }),
              HasSubstr("type Long; expected Float"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                session.run({y}, {{x, torch::Tensor()}});
              }),
              HasSubstr("an undefined tensor"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                session.run({y}, {{x, value}, {x, value}});
              }),
              HasSubstr("'x:0' is fed twice"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { session.run({Output()}); }),
              HasSubstr("a fetch is undefined"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                session.run({y}, {{x, value}}, {other.group({})});
              }),
              HasSubstr("another graph"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { Session("nowhere", graph); }),
              HasSubstr("'nowhere' is no target"));
  EXPECT_TRUE(session.run({y}, {{x, value}})[0].equal(value)) << "and goes on";
}

TEST(Session, AnOperatorThatFailsIsNamedAndTheNextRunWorks) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat);
  const Output y = ops::linear(x, graph.variable("w", torch::ones({3, 4}))).named("last");
  Session session("local", graph);
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                session.run({y}, {{x, torch::ones({2, 4})}});
              }),
              AllOf(HasSubstr("the variable 'w' has no value yet"), HasSubstr("initializer()")));
  session.run({}, {}, {graph.initializer()});
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                session.run({y}, {{x, torch::ones({2, 5})}});
              }),
              AllOf(HasSubstr("node 'last' (aten::linear, made at session_test.cc:"),
                    HasSubstr("cannot be multiplied")));
  EXPECT_EQ(session.run({y}, {{x, torch::ones({2, 4})}})[0].sum().item<float>(), 24);
}

TEST(Session, VariablesKeepTheirValuesFromRunToRun) {
  Graph graph;
  const Output w = graph.variable("w", torch::zeros({2}));
  const Output more = graph.assign(w, ops::add(w, 1));
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  for (int i = 1; i <= 3; ++i)
    EXPECT_EQ(session.run({more})[0].sum().item<float>(), 2.F * static_cast<float>(i));
  EXPECT_EQ(session.run({w})[0].sum().item<float>(), 6);
  Session second("local", graph);
  second.run({}, {}, {graph.initializer()});
  EXPECT_EQ(second.run({w})[0].sum().item<float>(), 0) << "another session has variables of its own";
}

TEST(Session, AReadIsOfTheMomentWhenItRuns) {
  Graph graph;
  const Output w = graph.variable("w", torch::zeros({1}));
  const Output changed = graph.assign(w, graph.constant(torch::ones({1})));
  Output after;
  {
    const auto scope = graph.control_dependencies({changed});
    after = graph.read(w);
  }
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  const auto results = session.run({w, after});
  EXPECT_EQ(results[0].item<float>(), 0);
  EXPECT_EQ(results[1].item<float>(), 1);
}

TEST(Session, ResultsBelongToTheCaller) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {2});
  const Output w = graph.variable("w", torch::zeros({2}));
  const Output c = graph.constant(torch::ones({2}));
  const Output taken = graph.assign(w, x);
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  session.run({w})[0].fill_(7);
  EXPECT_EQ(session.run({w})[0].sum().item<float>(), 0) << "writing to a result changes no variable";
  session.run({c})[0].fill_(7);
  EXPECT_EQ(session.run({c})[0].sum().item<float>(), 2);
  session.run({ops::view(w, {2, 1})})[0].fill_(7);
  EXPECT_EQ(session.run({w})[0].sum().item<float>(), 0) << "nor through a view";
  torch::Tensor fed = torch::ones({2});
  session.run({taken}, {{x, fed}});
  fed.fill_(7);
  EXPECT_EQ(session.run({w})[0].sum().item<float>(), 2)
      << "a variable does not share the memory of what was fed";
  const torch::Tensor kept = session.run({w})[0];
  session.run({}, {{x, torch::zeros({2})}}, {taken});
  EXPECT_EQ(kept.sum().item<float>(), 2) << "a result stays as it was";
}

TEST(Session, RunsOnlyWhatIsAskedForAndControlDependencies) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {1});
  const Output count = graph.variable("count", torch::zeros({1}));
  const Output counted = graph.assign(count, ops::add(count, 1));
  const Output aside = ops::relu(x);
  Output y;
  {
    const auto scope = graph.control_dependencies({counted});
    y = ops::neg(x);
  }
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  session.run({aside}, {{x, torch::ones({1})}});
  EXPECT_EQ(session.run({count})[0].item<float>(), 0);
  session.run({y}, {{x, torch::ones({1})}});
  EXPECT_EQ(session.run({count})[0].item<float>(), 1);
  session.run({}, {{x, torch::ones({1})}}, {graph.group({y, counted})});
  EXPECT_EQ(session.run({count})[0].item<float>(), 2) << "once a run, however often it is needed";
}

TEST(Session, RandomNodesAreRunEachTimeAndNotShared) {
  Graph graph;
  const Output x = graph.constant(torch::ones({64}));
  const Output a = ops::dropout(x, 0.5, true);
  const Output b = ops::dropout(x, 0.5, true);
  const Output c = ops::rand(graph, {8});
  const Output d = ops::rand(graph, {8});
  Session session("local", graph);
  const auto first = session.run({a, b, c, d});
  const auto second = session.run({a, b, c, d});
  EXPECT_FALSE(first[0].equal(first[1]));
  EXPECT_FALSE(first[2].equal(first[3]));
  EXPECT_FALSE(first[0].equal(second[0]));
  EXPECT_FALSE(first[2].equal(second[2]));
}

// Operators of a library of the tests' own. Libtorch is told nothing of them but their arguments.
std::atomic<int> calls_of_next{0};
std::atomic<int> calls_of_scaled{0};

torch::Tensor next_number(const torch::Tensor& x) {
  return x + ++calls_of_next;
}

torch::Tensor scaled(const torch::Tensor& x) {
  ++calls_of_scaled;
  return x * 3;
}

struct ScaledFunction : torch::autograd::Function<ScaledFunction> {
  static torch::Tensor forward(torch::autograd::AutogradContext* /*context*/, const torch::Tensor& x) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow("muster_session_test::scaled", "")
        .typed<torch::Tensor(const torch::Tensor&)>()
        .call(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0] * 3};
  }
};

torch::Tensor scaled_with_gradient(const torch::Tensor& x) {
  return ScaledFunction::apply(x);
}

TORCH_LIBRARY(muster_session_test, library) {
  library.def("next(Tensor x) -> Tensor");
  library.def("scaled(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(muster_session_test, CPU, library) {
  library.impl("next", next_number);
  library.impl("scaled", scaled);
}
TORCH_LIBRARY_IMPL(muster_session_test, Autograd, library) {
  library.impl("scaled", scaled_with_gradient);
}

TEST(Session, OperatorsOfTheUsersLibraryRunWheneverTheGraphSaysSo) {
  Graph graph;
  const Output x = graph.constant(torch::zeros({1}));
  const Output first = graph.add("muster_session_test::next", {x}).output();
  const Output second = graph.add("muster_session_test::next", {x}).output();
  Session session("local", graph);
  for (int run = 0; run < 3; ++run) {
    calls_of_next = 10 * run;
    const auto results = session.run({first, second});
    EXPECT_EQ(calls_of_next, 10 * run + 2) << "neither folded nor shared";
    EXPECT_EQ(results[0].item<float>() + results[1].item<float>(), static_cast<float>(20 * run + 3));
  }
}

TEST(Session, OperatorsOfTheUsersLibraryHaveTheirOwnDerivatives) {
  Graph graph;
  const Output w = graph.variable("w", torch::ones({2}));
  const Output y = graph.add("muster_session_test::scaled", {w}).output();
  const Output d = gradients({ops::sum(ops::mul(y, y))}, {w}).front();
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  for (int run = 0; run < 2; ++run) {
    calls_of_scaled = 0;
    const auto results = session.run({y, d});
    EXPECT_TRUE(results[0].equal(torch::full({2}, 3.F)));
    EXPECT_TRUE(results[1].equal(torch::full({2}, 18.F)));
    EXPECT_EQ(calls_of_scaled, 1);
  }
}

// How often libtorch calls an operator of this name while it lives, from any thread.
class CallsOf {
 public:
  explicit CallsOf(std::string name) {
    name_ = std::move(name);
    count_ = 0;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function)
                                                                   -> std::unique_ptr<at::ObserverContext> {
                                      if (name_ == function.name()) ++count_;
                                      return nullptr;
                                    }).scopes({at::RecordScope::FUNCTION}));
  }
  ~CallsOf() { at::removeCallback(handle_); }
  CallsOf(const CallsOf&) = delete;
  CallsOf& operator=(const CallsOf&) = delete;

  int count() const { return count_; }

 private:
  static inline std::string name_;  // static: libtorch calls a function without a state
  static inline std::atomic<int> count_ = 0;
  at::CallbackHandle handle_ = 0;
};

TEST(Session, SimplifyingComputesConstantsOnceAndTheSameOnce) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {4});
  const Output folded = ops::relu(graph.constant(torch::ones({4})));
  const Output left = ops::tanh(ops::mul(x, folded));
  const Output right = ops::tanh(ops::mul(x, folded));
  const Output y = ops::add(left, right);
  const torch::Tensor input = torch::rand({4});
  for (const bool fold : {true, false}) {
    for (const bool share : {true, false}) {
      Session session("local", graph, {.fold_constants = fold, .share_subexpressions = share});
      session.run({y}, {{x, input}});  // which compiles it
      {
        const CallsOf relu("aten::relu");
        session.run({y}, {{x, input}});
        EXPECT_EQ(relu.count(), fold ? 0 : 1);
      }
      for (const char* name : {"aten::tanh", "aten::mul"}) {
        const CallsOf calls(name);
        session.run({y}, {{x, input}});
        EXPECT_EQ(calls.count(), share ? 1 : 2) << name;
      }
    }
  }
}

TEST(Session, SimplifyingChangesNoResult) {
  Graph graph;
  torch::manual_seed(1);
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 4});
  const Output c = graph.constant(torch::rand({4, 4}));
  const Output w = graph.variable("w", torch::rand({4, 4}));
  const Output folded = ops::matmul(ops::t(c), ops::relu(c));
  const Output left = ops::tanh(ops::matmul(x, ops::mul(w, folded)));
  const Output right = ops::tanh(ops::matmul(x, ops::mul(w, folded)));
  const auto parts = ops::chunk(ops::add(left, right), 2, 1);
  const Output y = ops::sum(ops::mul(ops::cat(parts, 1), ops::cat({parts[1], parts[0]}, 1)));
  const Output d = gradients({y}, {w}).front();
  std::vector<std::vector<torch::Tensor>> all;
  const torch::Tensor input = torch::rand({5, 4});
  for (const bool fold : {true, false}) {
    for (const bool share : {true, false}) {
      for (const bool join : {true, false}) {
        Session session("local", graph,
                        {.fold_constants = fold, .share_subexpressions = share, .join_gradients = join});
        session.run({}, {}, {graph.initializer()});
        all.push_back(session.run({y, d, left, folded}, {{x, input}}));
      }
    }
  }
  for (const auto& results : all) {
    for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(results[i].equal(all.front()[i])) << i;
  }
}

TEST(Session, ManyThreadsRunAtOnce) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch});
  const Output w = graph.variable("w", torch::zeros({1000}));
  const Output y = ops::add(ops::mul(x, 3), 1);
  const Node train = apply_gradients(optim::SGD({.lr = 1}), {ops::neg(ops::ones_like(w))}, {w});
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 100; ++i) {
        const auto value = torch::full({thread + 1}, static_cast<float>(i));
        if (!session.run({y}, {{x, value}})[0].equal(value * 3 + 1)) ++wrong;
        session.run({}, {}, {train});
        const torch::Tensor seen = session.run({w})[0];
        if (!seen.equal(seen[0].expand({1000}))) ++wrong;  // never half of an update
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(session.run({w})[0][0].item<float>(), 400) << "no update is lost";
}

TEST(Session, ListsNumbersAndTextsAreValuesToo) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 6});
  const Output size = graph.add("aten::size.int", {x, 0}).output();
  const Output half = graph.add("aten::floordiv.int", {size, 2}).output();
  const Output y = graph.add("aten::view", {x, std::vector<Output>{half, graph.value(12)}}).output();
  EXPECT_EQ(y.shape().to_string(), "?")
      << "half of a batch is not linear in whole numbers, as far as one can tell";
  Session session("local", graph);
  EXPECT_EQ(session.run({y}, {{x, torch::ones({4, 6})}})[0].sizes(), (std::vector<int64_t>{2, 12}));
  EXPECT_EQ(session.run({half}, {{x, torch::ones({4, 6})}})[0].item<int64_t>(), 2) << "fetched as a tensor";
}

TEST(Session, FeedsAreCountedAndHaveOneBatch) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 3});
  const Output y = graph.placeholder("y", at::kFloat, {kBatch, 3});
  const Output sum = ops::add(x, y);
  Session session("local", graph);
  const Callable call = session.make_callable({x, y}, {sum});
  const auto refusal = [&](const std::vector<at::Tensor>& feeds) -> std::string {
    try {
      call(feeds);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(refusal({torch::ones({2, 3})}), HasSubstr("1 tensors are given for 2 feeds"));
  EXPECT_THAT(refusal({torch::ones({1, 3}), torch::ones({5, 3})}),
              HasSubstr("'x:0' is fed a batch of 1, and 'y:0' one of 5"));
}

TEST(Session, WhatIsOfAnotherGraphIsRefused) {
  Graph graph;
  Graph other;
  const Output strange = other.constant(1.0);
  Session session("local", graph);
  EXPECT_THROW(session.run({strange}), InvalidArgument);
  EXPECT_THROW(session.run({}, {}, {strange}), InvalidArgument);
}

TEST(Session, DropoutInsideLargerOperatorsIsDrawnInEachRun) {
  Graph graph;
  const Output q = graph.constant(torch::rand({2, 4, 8}));
  const Node first = graph.add("aten::_scaled_dot_product_attention", {q, q, q}, {{"dropout_p", 0.5}});
  const Node second = graph.add("aten::_scaled_dot_product_attention", {q, q, q}, {{"dropout_p", 0.5}});
  Session session("local", graph);
  const auto run = [&] { return session.run({first.output(), second.output()}); };
  const auto results = run();
  EXPECT_FALSE(torch::equal(results[0], results[1])) << "they are not one node";
  EXPECT_FALSE(torch::equal(results[0], run()[0])) << "it is no constant";
}

TEST(Session, TrainsInInferenceModeToo) {
  Graph graph;
  const Output w = graph.variable("w", torch::ones({2}));
  const Node step = minimize(optim::SGD({.lr = 0.5}), ops::sum(w));
  Session session("local", graph);
  const Node init = graph.initializer();
  const c10::InferenceMode inference;
  session.run({}, {}, {init});
  session.run({}, {}, {step});
  EXPECT_TRUE(torch::equal(session.run({w}).front(), torch::full({2}, 0.5)));
}

// Buffers that forward changes, several times and after the result.
struct CountingImpl : torch::nn::Module {
  CountingImpl()
      : mean(register_buffer("mean", torch::zeros({3}))),
        calls(register_buffer("calls", torch::zeros({1}))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    mean.mul_(0.9);
    mean.add_(x.mean(0), 0.1);
    torch::Tensor y = x - mean;
    calls.add_(1);
    return y;
  }
  torch::Tensor mean;
  torch::Tensor calls;
};
TORCH_MODULE(Counting);

TEST(Session, AnImportedModuleComputesWhatItDoesItself) {
  torch::manual_seed(3);
  torch::jit::Module inner("inner");
  inner.register_parameter("weight", torch::rand({4, 3}), /*is_buffer=*/false);
  inner.register_buffer("shift", torch::rand({4}));
  inner.define("def forward(self, x):\n  return torch.linear(x, self.weight, self.shift)\n");
  torch::jit::Module module("module");
  module.register_module("inner", inner);
  module.define(
      "def forward(self, x):\n"
      "  y = torch.tanh(self.inner.forward(x))\n"
      "  return torch.cat([y.view(x.size(0), -1), x], 1)\n");
  const std::string file = ::testing::TempDir() + fmt::format("imported{}.pt", getpid());
  module.save(file);
  Graph graph;
  const TracedModule imported = import_module(graph, file, {torch::rand({2, 3})});
  std::filesystem::remove(file);
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  for (const int64_t batch : {1, 2, 5}) {
    const torch::Tensor x = torch::rand({batch, 3});
    const torch::Tensor result = session.run({imported.outputs[0]}, {{imported.inputs[0], x}}).front();
    EXPECT_TRUE(torch::equal(result, module.forward({x}).toTensor())) << batch;
  }
  // It can be trained, too.
  const Output w = graph.output("inner.weight");
  const torch::Tensor x = torch::rand({2, 3});
  const torch::Tensor gradient =
      session.run({gradients({ops::sum(imported.outputs[0])}, {w}).front()}, {{imported.inputs[0], x}})
          .front();
  inner.attr("weight").toTensor().requires_grad_();
  module.forward({x}).toTensor().sum().backward();
  EXPECT_TRUE(torch::allclose(gradient, inner.attr("weight").toTensor().grad()));
}

TEST(Session, PlacementIsLoggedInOneProcessToo) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {});
  const Output y = ops::relu(x).named("y");
  ops::neg(y);  // nobody needs it
  Session session("local", graph, {.log_device_placement = true});
  ::testing::internal::CaptureStderr();
  session.run({y}, {{x, torch::ones({})}});
  session.run({y}, {{x, torch::ones({})}});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "y: (aten::relu): /job:localhost/replica:0/task:0/device:cpu:0\n")
      << "once, when it is compiled";
  Session silent("local", graph);
  ::testing::internal::CaptureStderr();
  silent.run({y}, {{x, torch::ones({})}});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Session, ATimelineSaysWhatWasDoneWhen) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {1000});
  const Output y = std::get<0>(ops::sort(x)).named("sorted");
  const Output z = ops::relu(y).named("relu");
  ops::neg(y);  // nobody needs it
  Session session("local", graph);
  Timeline timeline;
  for (int run = 0; run < 2; ++run) {
    session.run({z}, {{x, torch::rand({1000})}}, {}, &timeline);
    ASSERT_THAT(timeline.spans, SizeIs(2)) << "of the last run";
    EXPECT_EQ(timeline.spans[0].op, "aten::sort");
    EXPECT_EQ(timeline.spans[1].node, "relu");
    EXPECT_EQ(timeline.spans[1].task, "/job:localhost/task:0");
    EXPECT_EQ(timeline.spans[0].start.count(), 0);
    EXPECT_GT(timeline.spans[0].duration.count(), 0);
    EXPECT_GE(timeline.spans[1].start, timeline.spans[0].duration);
  }
  const auto callable = session.make_callable({x}, {z});
  callable({torch::rand({1000})});
  EXPECT_THAT(timeline.spans, SizeIs(2));
  timeline.spans.clear();
  callable({torch::rand({1000})}, &timeline);
  EXPECT_THAT(timeline.spans, SizeIs(2));
}

TEST(Session, ATracedModuleChangesItsBuffersAsInALoop) {
  Counting module;
  Graph graph;
  const TracedModule traced = trace(graph, module, {torch::rand({2, 3})});
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  for (int i = 0; i < 3; ++i) {
    const at::Tensor x = torch::rand({4, 3});
    const at::Tensor result = session.run({traced.outputs[0]}, {{traced.inputs[0], x}}).front();
    EXPECT_TRUE(torch::allclose(result, module->forward(x)));
    const auto buffers = session.run({graph.output("mean"), graph.output("calls")});
    EXPECT_TRUE(torch::allclose(buffers[0], module->mean)) << i;
    EXPECT_TRUE(torch::equal(buffers[1], module->calls)) << i;
  }
}

}  // namespace
}  // namespace muster
