#include "muster/server.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <optional>
#include <random>
#include <stdexcept>
#include <string_view>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/log.h"
#include "muster/deadline.h"
#include "muster/error.h"
#include "muster/ops.h"
#include "muster/pipeline.h"
#include "muster/runtime/runtime_stream.h"
#include "muster/runtime/server_test.h"
#include "muster/session.h"
#include "muster/testing/message_of.h"

namespace muster {
namespace {

using detail::testing::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Server, AConstantOfAnotherTaskComesFromThere) {
  const TestServers cluster(2);
  Graph graph;
  Output hello;
  {
    const auto other = graph.with_device("/job:task/task:1");
    hello = graph.constant(torch::arange(5), "hello");
  }
  Session session(cluster.target(), graph, {.log_device_placement = true});
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(torch::equal(session.run({hello}).front(), torch::arange(5)));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "hello: (muster::constant): /job:task/replica:0/task:1/device:cpu:0\n");
  const Output there_and_here = ops::add(hello, hello);
  EXPECT_TRUE(torch::equal(session.run({there_and_here}).front(), 2 * torch::arange(5)))
      << "the graph may grow between runs";
}

TEST(Server, AGraphThatSaysAnotherShapeOfASharedVariableIsRefused) {
  const TestServers cluster(1);
  Graph first;
  const Output w = first.variable("w", torch::ones({2}));
  Session session(cluster.target(), first, {.secret = "test"});
  session.run({}, {}, {first.initializer()});
  Graph other;
  const Output wider = other.variable("w", torch::zeros({3}));
  const Node init = other.initializer();
  Session shares(cluster.target(), other, {.secret = "test"});
  EXPECT_THAT(message_of([&] { shares.run({}, {}, {init}); }),
              AllOf(HasSubstr("node 'w'"), HasSubstr("is Float [2] here"), HasSubstr("says Float [3]")));
  EXPECT_TRUE(torch::equal(session.run({w}).front(), torch::ones({2})));
  Session elsewhere(cluster.target(), other, {.container = "other", .secret = "test"});
  elsewhere.run({}, {}, {init});
  EXPECT_TRUE(torch::equal(elsewhere.run({wider}).front(), torch::zeros({3})));
}

TEST(Server, AClusterOfOneNeedsNoSecret) {
  Server server = Server::create_local();
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch});
  Session session(server.target(), graph);
  EXPECT_TRUE(torch::equal(session.run({ops::mul(x, x)}, {{x, torch::full({3}, 2.0)}}).front(),
                           torch::full({3}, 4.0)));
}

// A model of several layers with a skip and a weight that two layers share.
struct Model {
  explicit Model(const std::function<std::string()>& device) {
    const auto place = graph.with_device([device](const Node&) { return device(); });
    torch::manual_seed(3);
    x = graph.placeholder("x", at::kFloat, {kBatch, 6});
    Output h = x;
    const Output shared = graph.variable("shared", torch::randn({6, 6}) * 0.3);
    for (int layer = 0; layer < 4; ++layer) {
      const Output w = graph.variable(fmt::format("w{}", layer), torch::randn({6, 6}) * 0.3);
      const Output b = graph.variable(fmt::format("b{}", layer), torch::randn({6}));
      h = ops::add(ops::tanh(ops::linear(ops::matmul(h, shared), w, b)), h);
    }
    loss = ops::mean(ops::pow(h, 2));
    step = minimize(optim::SGD({.lr = 0.1, .momentum = 0.9}), loss);
    init = graph.initializer();
  }

  Graph graph;
  Output x;
  Output loss;
  Node step;
  Node init;
};

std::vector<at::Tensor> train(const std::string& target, Model& model, const Session::Options& options) {
  Session session(target, model.graph, options);
  session.run({}, {}, {model.init});
  torch::manual_seed(5);
  std::vector<at::Tensor> results;
  for (int i = 0; i < 5; ++i)
    results.push_back(session.run({model.loss}, {{model.x, torch::randn({4, 6})}}, {model.step}).front());
  for (const auto& variable : session.run(model.graph.variables())) results.push_back(variable);
  return results;
}

// Values and derivatives cross from task to task anywhere, also back and forth.
TEST(Server, AnyPlacementTrainsAsOneProcess) {
  const TestServers cluster(3);
  Model here([] { return std::string(); });
  const auto expected = train("local", here, {});
  std::mt19937 random(7);
  for (int trial = 0; trial < 12; ++trial) {
    Model there([&random] { return fmt::format("/job:task/task:{}", random() % 3); });
    const auto results = train(cluster.target(trial % 3), there,
                               {.join_gradients = trial % 4 != 3, .private_variables = true});
    ASSERT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < results.size(); ++i)
      EXPECT_TRUE(torch::allclose(results[i], expected[i], 1e-5, 1e-6)) << "trial " << trial << ", " << i;
  }
}

TEST(Server, VariablesAreSharedByNameUnlessTheyAreTheSessionsOwn) {
  const TestServers cluster(2);
  Graph graph;
  const auto place = graph.with_device("/job:task/task:1");
  const Output w = graph.variable("w", torch::zeros({2}));
  const Node more = graph.assign(w, ops::add(w, graph.constant(torch::ones({2}))));
  const Node init = graph.initializer();
  Session first(cluster.target(0), graph);
  Session second(cluster.target(1), graph);
  Session own(cluster.target(0), graph, {.private_variables = true});
  Session named(cluster.target(0), graph, {.container = "other"});
  first.run({}, {}, {init});
  second.run({}, {}, {more});
  EXPECT_TRUE(torch::equal(first.run({w}).front(), torch::ones({2})));
  for (auto* session : {&own, &named}) {
    EXPECT_THAT(message_of([&] { session->run({w}); }), HasSubstr("'w'")) << "it has no value there";
    session->run({}, {}, {init});
    EXPECT_TRUE(torch::equal(session->run({w}).front(), torch::zeros({2})));
  }
  EXPECT_TRUE(torch::equal(second.run({w}).front(), torch::ones({2})));
}

TEST(Server, AContainerThatIsSharedAndPrivateIsRefused) {
  const TestServers cluster(1);
  const Graph graph;
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                const Session session(cluster.target(), graph, {.container = "q", .private_variables = true});
              }),
              HasSubstr("leave one of them out"));
}

TEST(Server, LargeConstantsAndManyTypesCross) {
  const TestServers cluster(2);
  Graph graph;
  std::vector<Output> outputs;
  std::vector<at::Tensor> expected;
  torch::manual_seed(1);
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kByte,
                          at::kBool, at::kComplexFloat}) {
    const at::Tensor value = (torch::rand({300, 200}) * 100).to(type);
    expected.push_back(value);
    Output constant;
    {
      const auto other = graph.with_device("/job:task/task:1");
      constant = graph.constant(value);
    }
    outputs.push_back(ops::t(constant));
  }
  expected.push_back(torch::zeros({0, 3}).t());
  Output empty;
  {
    const auto other = graph.with_device("/job:task/task:1");
    empty = graph.constant(torch::zeros({0, 3}));
  }
  outputs.push_back(ops::t(empty));
  Session session(cluster.target(), graph, {.fold_constants = false});
  const auto results = session.run(outputs);
  for (size_t i = 0; i + 1 < results.size(); ++i) EXPECT_TRUE(torch::equal(results[i], expected[i].t())) << i;
  EXPECT_EQ(results.back().sizes(), (std::vector<int64_t>{3, 0}));
}

// Nothing large goes through protobuf, whose messages end at 2 GiB.
TEST(Server, AConstantOfMoreThan2GiBCrosses) {
  const TestServers cluster(2);
  constexpr int64_t kBytes = (int64_t{1} << 31) + 4096;
  Graph graph;
  Output there;
  {
    const auto other = graph.with_device("/job:task/task:1");
    there = graph.constant(torch::ones({kBytes}, at::kByte));
  }
  const Output last = ops::slice(there, 0, kBytes - 3, kBytes);
  Session session(cluster.target(), graph, {.fold_constants = false});
  EXPECT_TRUE(torch::equal(session.run({last}).front(), torch::ones({3}, at::kByte)));
}

TEST(Server, AGraphOfAMillionNodesRuns) {
  const TestServers cluster(2);
  constexpr int kNodes = 1'000'000;
  Graph graph;
  const Output x = graph.placeholder("x", at::kDouble, {});
  Output sum = x;
  for (const char* device : {"/job:task/task:0", "/job:task/task:1"}) {
    const auto place = graph.with_device(device);
    for (int i = 0; i < kNodes / 2; ++i) sum = ops::add(sum, 1);
  }
  Session session(cluster.target(), graph, {.timeout = std::chrono::minutes(2)});
  EXPECT_EQ(session.run({sum}, {{x, torch::zeros({}, at::kDouble)}}).front().item<double>(), kNodes);
}

// A text can't go from task to task, and need not.
TEST(Server, ATextIsWhereItIsUsed) {
  const TestServers cluster(2);
  Graph graph;
  const Output rounding = graph.value(std::string("floor"), "rounding");
  const Output x = graph.placeholder("x", at::kFloat, {2});
  Output y;
  {
    const auto other = graph.with_device("/job:task/task:1");
    y = graph
            .add("aten::div.Tensor_mode", {x, graph.constant(torch::full({2}, 2.0))},
                 {{"rounding_mode", rounding}})
            .output();
  }
  Session session(cluster.target(), graph);
  EXPECT_TRUE(torch::equal(session.run({y}, {{x, torch::tensor({3.0F, 5.0F})}}).front(),
                           torch::tensor({1.0F, 2.0F})));
}

// The tape is cut where values go from task to task.
TEST(Server, GradientsOverTasksAreThoseOfDifferences) {
  const TestServers cluster(2);
  torch::manual_seed(5);
  Graph graph;
  const Output x = graph.placeholder("x", at::kDouble, {3, 3});
  Output h;
  {
    const auto other = graph.with_device("/job:task/task:1");
    h = ops::tanh(ops::matmul(x, x));
  }
  const Output k = ops::mul(ops::sin(h), x);
  Output y;
  {
    const auto other = graph.with_device("/job:task/task:1");
    y = ops::sum(ops::exp(ops::mul(ops::matmul(k, h), x)));
  }
  const Output gradient = gradients({y}, {x}).front();
  Session session(cluster.target(), graph);
  const torch::Tensor point = torch::rand({3, 3}, at::kDouble);
  const torch::Tensor found = session.run({gradient}, {{x, point}}).front();
  constexpr double kStep = 1e-6;
  for (int i = 0; i < 9; ++i) {
    const auto moved = [&](double by) {
      const torch::Tensor other = point.clone();
      other.view({9})[i] += by;
      return session.run({y}, {{x, other}}).front().item<double>();
    };
    EXPECT_NEAR((moved(kStep) - moved(-kStep)) / (2 * kStep), found.view({9})[i].item<double>(), 1e-5) << i;
  }
}

TEST(Server, WhatIsWrongIsSaidAsInOneProcess) {
  const TestServers cluster(2);
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat);
  Output product;
  {
    const auto other = graph.with_device("/job:task/task:1");
    product = ops::matmul(x, x).named("product");
  }
  Output nowhere;
  {
    const auto place = graph.with_device("/job:task/task:9");
    nowhere = graph.constant(1.0);
  }
  Session session(cluster.target(), graph);
  EXPECT_THAT(message_of([&] {
                session.run({product}, {{x, torch::ones({2, 3})}});
              }),
              AllOf(HasSubstr("node 'product' (aten::matmul, made at "), HasSubstr("server_test.cc")));
  EXPECT_THAT(message_of([&] {
                session.run({product}, {{x, torch::ones({2, 2}, at::kDouble)}});
              }),
              HasSubstr("'x:0' is fed a tensor of type Double; expected Float"));
  EXPECT_THAT(message_of([&] { session.run({product}); }), HasSubstr("needs a value: feed it"));
  EXPECT_THAT(message_of([&] { session.run({nowhere}); }), HasSubstr("which the cluster does not have"));
  Graph other;
  const Output strange = other.constant(1.0);
  EXPECT_THAT(message_of([&] { session.run({strange}); }), HasSubstr("is of another graph"));
  EXPECT_TRUE(
      torch::equal(session.run({product}, {{x, torch::ones({2, 2})}}).front(), torch::full({2, 2}, 2.0)))
      << "the servers stay up";
}

TEST(Server, OnlyThoseWhoKnowTheSecretAreLetIn) {
  const TestServers cluster(1);
  Graph graph;
  EXPECT_THAT(message_of([&] { Session(cluster.target(), graph, {.secret = "wrong"}); }),
              HasSubstr("the client has another secret than it"));
  EXPECT_THAT(message_of([&] { Server::stop(cluster.target(), {.secret = "wrong"}); }),
              HasSubstr("the client has another secret than it"));
  EXPECT_THAT(message_of([&] { Session("grpc://127.0.0.1:1", graph, {.secret = "any"}); }),
              HasSubstr("no server answers at 127.0.0.1:1"));
  EXPECT_THAT(message_of([&] { Session("somewhere", graph); }), HasSubstr("'somewhere' is no target"));
}

TEST(Server, ASessionWaitsForAllTasksAndSaysSo) {
  std::atomic<int> notices{0};
  detail::set_log_sink([&notices](std::string_view line) {
    if (line.find("CreateSession still waiting for response from worker: /job:task/replica:0/task:1") !=
        std::string_view::npos)
      ++notices;
  });
  TestServers cluster(2, /*start=*/false);
  cluster.start(0);
  Graph graph;
  const Output one = graph.constant(1.0);
  auto session = std::async(
      std::launch::async, [&] { return Session(cluster.target(), graph).run({one}).front().item<float>(); });
  const auto deadline = Deadline::after(std::chrono::seconds(60));
  while (notices == 0 && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_GT(notices, 0);
  cluster.start(1);
  EXPECT_EQ(session.get(), 1);
  detail::set_log_sink({});
}

TEST(Server, ASessionWaitsForTasksAsLongAsItIsTold) {
  TestServers cluster(2, /*start=*/false);
  cluster.start(0);
  Graph graph;
  const auto message = message_of<DeadlineExceeded>(
      [&] { const Session session(cluster.target(), graph, {.wait_for_tasks = std::chrono::seconds(12)}); });
  EXPECT_THAT(message,
              AllOf(HasSubstr("not all tasks of the cluster have come within 12.0 s"),
                    HasSubstr("still waiting for response from worker: /job:task/replica:0/task:1")));
}

TEST(Server, ATaskThatIsLostIsNamedAndTheNextRunWorksWhenItIsBack) {
  TestServers cluster(3);
  Graph graph;
  Output w;
  {
    const auto ps = graph.with_device("/job:task/task:1");
    w = graph.variable("w", torch::ones({2}));
  }
  Output y;
  {
    const auto other = graph.with_device("/job:task/task:2");
    y = ops::mul(w, w);
  }
  const Node init = graph.initializer();
  Session session(cluster.target(), graph);
  session.run({}, {}, {init});
  const Callable run = session.make_callable({}, {y});
  EXPECT_TRUE(torch::equal(run().front(), torch::ones({2})));
  cluster.kill(1);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_THAT(message_of([&] { run(); }), HasSubstr("/job:task/task:1 was lost"));
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(30));
  cluster.start(1);
  EXPECT_THAT(message_of([&] { run(); }), HasSubstr("'w'")) << "what it kept is lost";
  session.run({}, {}, {init});
  EXPECT_TRUE(torch::equal(run().front(), torch::ones({2})));
}

TEST(Server, NodesMayBeMovedBetweenRuns) {
  const TestServers cluster(2);
  Graph graph;
  graph.variable("w", torch::ones({2}));
  const Node init = graph.initializer();
  Session session(cluster.target(), graph, {.log_device_placement = true});
  const auto devices_of = [&](const auto& run) {
    ::testing::internal::CaptureStderr();
    run();
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(devices_of([&] { session.run({}, {}, {init}); }),
              HasSubstr("w/initialize: (muster::assign): /job:task/replica:0/task:0"));
  place(graph, {{"w*", "/job:task/task:1"}});
  EXPECT_THAT(devices_of([&] { session.run({}, {}, {init}); }),
              HasSubstr("w/initialize: (muster::assign): /job:task/replica:0/task:1"));
}

TEST(Server, ATimelineHasWhatAllTasksDidAndWhenTheyWaited) {
  const TestServers cluster(2);
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {200, 200});
  Output there;
  {
    const auto other = graph.with_device("/job:task/task:1");
    there = ops::matmul(x, x).named("there");
  }
  const auto first = graph.with_device("/job:task/task:0");
  const Output here = ops::relu(there).named("here");
  Session session(cluster.target(), graph, {.secret = "test"});
  Timeline timeline;
  for (int run = 0; run < 2; ++run) {
    session.run({here}, {{x, torch::rand({200, 200})}}, {}, &timeline);
    const auto span = [&](std::string_view op) {
      const auto found = std::ranges::find(timeline.spans, op, &TimelineSpan::op);
      if (found == timeline.spans.end()) throw std::runtime_error(fmt::format("there is no {}", op));
      return *found;
    };
    const TimelineSpan there_span = span("aten::matmul");
    const TimelineSpan here_span = span("aten::relu");
    const TimelineSpan wait = span("wait");
    EXPECT_EQ(there_span.task, "/job:task/task:1");
    EXPECT_EQ(there_span.node, "there");
    EXPECT_EQ(here_span.task, "/job:task/task:0");
    EXPECT_EQ(wait.task, "/job:task/task:0") << "for the product";
    EXPECT_EQ(wait.node, "");
    EXPECT_GE(here_span.start, there_span.start + there_span.duration);
    EXPECT_GE(here_span.start, wait.start + wait.duration);
    EXPECT_EQ(timeline.spans.front().start.count(), 0);
  }
  EXPECT_THROW(session.run({here}, {}, {}, &timeline), InvalidArgument);
  session.run({here}, {{x, torch::rand({200, 200})}});
}

TEST(Server, ManyThreadsAndSessionsRunAtOnce) {
  const TestServers cluster(2);
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch});
  Output far;
  {
    const auto other = graph.with_device("/job:task/task:1");
    far = ops::add(x, x);
  }
  const Output y = ops::mul(far, x);
  Session first(cluster.target(0), graph);
  Session second(cluster.target(1), graph);
  const Callable calls[] = {first.make_callable({x}, {y}), second.make_callable({x}, {y})};
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int thread = 0; thread < 6; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 50; ++i) {
        const auto value = static_cast<float>(100 * thread + i);
        if (calls[thread % 2]({torch::full({3}, value)}).front()[1].item<float>() != 2 * value * value)
          ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// An output of one task that several nodes of another take: its gradient comes from one pass there.
TEST(Server, AddsUpTheGradientsOfAllUsersOnAnotherTaskOnce) {
  const TestServers cluster(2);
  torch::manual_seed(5);
  const torch::Tensor initial = torch::randn({4, 4});
  const torch::Tensor given = torch::randn({8, 4});
  const auto gradient = [&](const std::string& target, bool join) {
    Graph graph;
    const Output x = graph.placeholder("x", torch::kFloat, {kBatch, 4});
    Output w, hidden, loss;
    {
      const auto device = graph.with_device("/job:task/task:0");
      w = graph.variable("w", initial);
      hidden = ops::tanh(ops::matmul(x, w));
    }
    {
      const auto device = graph.with_device("/job:task/task:1");
      const Output once = ops::mul(hidden, hidden);
      loss = ops::sum(ops::add(ops::exp(once), ops::sigmoid(hidden)));
    }
    const auto found = gradients({loss}, {w, hidden});
    Session session(target, graph,
                    {.join_gradients = join, .private_variables = target != "local", .secret = "test"});
    session.run({}, {}, {graph.initializer()});
    const auto results = session.run(found, {{x, given}});
    return torch::cat({results[0], results[1]});
  };
  const torch::Tensor expected = gradient("local", true);
  EXPECT_TRUE(gradient("local", false).allclose(expected));
  EXPECT_TRUE(gradient(cluster.target(), true).allclose(expected));
  EXPECT_TRUE(gradient(cluster.target(), false).allclose(expected));
}

// The same, where it has users on its own task, before and after the values that come from the other one.
TEST(Server, AddsUpTheGradientsOfUsersOnBothTasksOnce) {
  const TestServers cluster(2);
  torch::manual_seed(6);
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 3});
  const Output w = graph.variable("w", torch::rand({3, 3}));
  const Output h = ops::tanh(ops::matmul(x, w));
  Output there;
  {
    const auto other = graph.with_device("/job:task/task:1");
    there = ops::mul(ops::sigmoid(h), h);
  }
  const Output loss = ops::sum(ops::mul(ops::mul(ops::mul(h, h), ops::mul(there, h)),
                                        ops::add(ops::sin(h), ops::add(there, ops::cos(h)))));
  const Output gradient = gradients({loss}, {w}).front();
  const torch::Tensor point = torch::rand({4, 3});
  std::vector<torch::Tensor> found;
  for (const std::string& target : {std::string("local"), cluster.target()}) {
    for (const bool join : {true, false}) {
      Session session(target, graph, {.join_gradients = join, .private_variables = true});
      session.run({}, {}, {graph.initializer()});
      found.push_back(session.run({gradient}, {{x, point}}).front());
    }
  }
  for (const auto& each : found) EXPECT_TRUE(each.allclose(found.front())) << each << found.front();
}

TEST(Server, LargeValuesGoOverSocketsWhereMemoryIsNotShared) {
  for (const bool is_shared : {true, false}) {
    const TestServers cluster(2, /*start=*/true, {.secret = "test", .shared_memory = is_shared});
    Graph graph;
    const Output x = graph.placeholder("x", torch::kFloat, {300, 1000});
    const Output v = graph.variable("v", torch::zeros({300, 1000}));
    Output there;
    {
      const auto device = graph.with_device("/job:task/task:1");
      there = ops::mul(ops::add(x, v), 2);
    }
    const Output assigned = graph.assign(v, ops::sub(there, 1));
    Session session(cluster.target(), graph, {.private_variables = true, .secret = "test"});
    session.run({}, {}, {graph.initializer()});
    const torch::Tensor given = torch::randn({300, 1000});
    torch::Tensor expected = torch::zeros({300, 1000});
    for (int i = 0; i < 3; ++i) {
      expected = (given + expected) * 2 - 1;
      torch::Tensor found = session.run({assigned}, {{x, given}}).front();
      EXPECT_TRUE(found.equal(expected)) << is_shared;
      found.zero_();  // what was fetched is the caller's
    }
    EXPECT_TRUE(session.run({v}).front().equal(expected)) << is_shared;
  }
}

// Whoever waits for a server asks it in the very moment in which it begins to listen.
TEST(Server, MayBeAskedWhileItStarts) {
  const detail::ReservedPort port("127.0.0.1");
  const std::string address = fmt::format("127.0.0.1:{}", port.port());
  std::atomic<bool> is_over{false};
  std::atomic<int> answers{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back([&] {
      while (!is_over) {
        try {
          const detail::RuntimeClient client(detail::Address::parse(address), "test",
                                             Deadline::after(std::chrono::seconds(20)));
          ++answers;
        } catch (const PeerLost&) {
          // It has not started, or has ended.
        }
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    const int before = answers;
    const Server server(ClusterSpec{{"task", {address}}}, "task", 0, {.secret = "test"});
    const auto deadline = Deadline::after(std::chrono::seconds(20));
    while (answers == before && !deadline.expired()) std::this_thread::yield();
    EXPECT_GT(answers, before);
  }
  is_over = true;
  for (auto& client : clients) client.join();
}

TEST(Server, IsStoppedByAnybodyWhoMay) {
  Server server = Server::create_local();
  std::thread stopper([target = server.target()] { Server::stop(target); });
  server.join();
  stopper.join();
}

TEST(Server, ARunThatTakesTooLongNamesWhoDidNotEndIt) {
  const TestServers cluster(2);
  Graph graph;
  Output slow;
  {
    const auto other = graph.with_device("/job:task/task:1");
    const Output x = graph.constant(torch::ones({2000, 2000}));
    slow = x;
    for (int i = 0; i < 200; ++i) slow = ops::matmul(slow, x);
  }
  Session session(cluster.target(), graph, {.fold_constants = false, .timeout = std::chrono::seconds(2)});
  EXPECT_THAT(message_of([&] { session.run({slow}); }),
              AllOf(HasSubstr("a run took longer than 2.0 s"), HasSubstr("/job:task/task:1")));
}

TEST(ClusterSpec, IsReadAndChecked) {
  EXPECT_EQ(ClusterSpec::parse("ps=h1:2222;worker=h2:2222,h3:2222").jobs(),
            (ClusterSpec::Jobs{{"ps", {"h1:2222"}}, {"worker", {"h2:2222", "h3:2222"}}}));
  EXPECT_THROW((ClusterSpec{{"ps", {"nowhere"}}}), InvalidArgument);
  EXPECT_THAT(message_of([] { ClusterSpec::parse("ps=3@h1:2222"); }), HasSubstr("has no task 0"));
  EXPECT_THAT(message_of([] {
                Server(ClusterSpec{{"ps", {"127.0.0.1:1"}}}, "ps", 1, {.secret = "x"});
              }),
              HasSubstr("task"));
}

}  // namespace
}  // namespace muster
