#include "muster/pipeline.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "muster/base/log.h"
#include "muster/error.h"
#include "muster/graph/graph_node.h"
#include "muster/ops.h"
#include "muster/runtime/server_test.h"
#include "muster/session.h"
#include "muster/stages.h"
#include "muster/testing/message_of.h"
#include "muster/trace.h"

namespace muster {
namespace {

using detail::testing::message_of;
using ::testing::HasSubstr;

constexpr int64_t kSamples = 24;

struct StagedNetImpl : torch::nn::Module {
  explicit StagedNetImpl(int stages, bool with_norm = false) {
    for (int i = 0; i < stages; ++i) {
      auto part =
          torch::nn::Sequential(torch::nn::Linear(6, 10), torch::nn::Tanh(), torch::nn::Linear(10, 6));
      if (with_norm) part->push_back(torch::nn::BatchNorm1d(6));
      parts.push_back(register_module("part" + std::to_string(i), part));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    const torch::Tensor first = x;
    for (auto& part : parts) x = torch::relu(part->forward(x)) + x;
    return x + first;  // from the first stage to the last
  }
  std::vector<torch::nn::Sequential> parts;
};
TORCH_MODULE(StagedNet);

struct Data {
  torch::Tensor x = torch::randn({kSamples, 6});
  torch::Tensor y = torch::randn({kSamples, 6});
};

std::vector<std::pair<std::string, std::string>> table(int stages) {
  std::vector<std::pair<std::string, std::string>> devices;
  for (int i = 0; i < stages; ++i)
    devices.emplace_back(fmt::format("part{}*", i), fmt::format("/job:task/task:{}", i));
  return devices;
}

// The values of all variables after some steps, and the last loss.
std::vector<torch::Tensor> trained(const std::string& target, Graph& graph, const Output& x, const Output& t,
                                   const Output& loss, const Node& train, const Data& data) {
  Session session(target, graph, {.private_variables = target != "local", .secret = "test"});
  session.run({}, {}, {graph.initializer()});
  std::vector<torch::Tensor> results;
  for (int i = 0; i < 6; ++i) results = session.run({loss}, {{x, data.x}, {t, data.y}}, {train});
  for (const auto& variable : graph.variables()) results.push_back(session.run({variable}).front());
  return results;
}

void expect_near(const std::vector<torch::Tensor>& found, const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(found[i].allclose(expected[i], 1e-5, 1e-6))
        << i << ": " << (found[i] - expected[i]).abs().max().item<double>();
}

struct Case {
  int stages = 1;
  int micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::kGPipe;
};

class PipelineTest : public ::testing::TestWithParam<Case> {};

TEST_P(PipelineTest, TrainsAsTheWholeBatchOnOneTask) {
  const auto [stages, micro_batches, schedule] = GetParam();
  torch::manual_seed(1);
  StagedNet net(stages);
  const Data data;
  const auto optimizer = optim::SGD({.lr = 0.1, .momentum = 0.9});
  std::vector<torch::Tensor> expected;
  {
    Graph graph;
    const auto traced = trace(graph, net, {torch::zeros({2, 6})});
    const Output t = graph.placeholder("t", torch::kFloat, {kBatch, 6});
    const Output loss = ops::mse_loss(traced.outputs[0], t);
    const Node train = minimize(optimizer, loss);
    expected = trained("local", graph, traced.inputs[0], t, loss, train, data);
  }
  const TestServers cluster(stages);
  for (const bool is_local : {true, false}) {
    Graph graph;
    const auto traced = trace(graph, net, {torch::zeros({2, 6})});
    place(graph, table(stages));
    const Output t = graph.placeholder("t", torch::kFloat, {kBatch, 6});
    const Output loss = ops::mse_loss(traced.outputs[0], t);
    const Pipeline pipeline =
        minimize_in_pipeline(optimizer, loss, {.micro_batches = micro_batches, .schedule = schedule});
    expect_near(trained(is_local ? "local" : cluster.target(), graph, pipeline.batch(traced.inputs[0]),
                        pipeline.batch(t), pipeline.loss, pipeline.train, data),
                expected);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Schedules, PipelineTest,
    ::testing::Values(Case{1, 4, PipelineSchedule::kZeroBubble}, Case{2, 1, PipelineSchedule::kZeroBubble},
                      Case{2, 4, PipelineSchedule::kGPipe}, Case{2, 8, PipelineSchedule::k1F1B},
                      Case{2, 8, PipelineSchedule::kZeroBubble}, Case{3, 2, PipelineSchedule::k1F1B},
                      Case{3, 6, PipelineSchedule::kGPipe}, Case{3, 6, PipelineSchedule::k1F1B},
                      Case{3, 12, PipelineSchedule::kZeroBubble}, Case{4, 8, PipelineSchedule::kZeroBubble}));

// A weight that the first and the last stage use.
TEST(Pipeline, TiedWeightsGetTheGradientsOfAllStages) {
  const Data data;
  const TestServers cluster(2);
  torch::manual_seed(2);
  const torch::Tensor first = torch::randn({6, 6});
  const torch::Tensor second = torch::randn({6, 6});
  const auto build = [&](Graph& graph) {
    const Output x = graph.placeholder("x", torch::kFloat, {kBatch, 6});
    const Output t = graph.placeholder("t", torch::kFloat, {kBatch, 6});
    Output w, hidden, loss;
    {
      const auto device = graph.with_device("/job:task/task:0");
      w = graph.variable("w", first);
      hidden = ops::tanh(ops::matmul(x, w));
    }
    {
      const auto device = graph.with_device("/job:task/task:1");
      const Output v = graph.variable("v", second);
      loss = ops::mse_loss(ops::matmul(ops::tanh(ops::matmul(hidden, v)), ops::t(w)), t);
    }
    return std::tuple(x, t, loss);
  };
  const auto optimizer = optim::Adam({.lr = 0.01});
  Graph whole;
  const auto [x, t, loss] = build(whole);
  const auto expected = trained("local", whole, x, t, loss, minimize(optimizer, loss), data);
  for (const auto schedule :
       {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
    Graph graph;
    const auto [small_x, small_t, small_loss] = build(graph);
    const Pipeline pipeline =
        minimize_in_pipeline(optimizer, small_loss, {.micro_batches = 4, .schedule = schedule});
    expect_near(trained(cluster.target(), graph, pipeline.batch(small_x), pipeline.batch(small_t),
                        pipeline.loss, pipeline.train, data),
                expected);
  }
}

// What takes parameters gives values that several nodes use: their gradients are sums.
TEST(Pipeline, ValuesMayBeUsedSeveralTimes) {
  const Data data;
  const TestServers cluster(2);
  torch::manual_seed(5);
  const torch::Tensor first = torch::randn({6, 6});
  const torch::Tensor second = torch::randn({6, 6});
  const auto build = [&](Graph& graph) {
    const Output x = graph.placeholder("x", torch::kFloat, {kBatch, 6});
    const Output t = graph.placeholder("t", torch::kFloat, {kBatch, 6});
    const auto swish = [](const Output& z) { return ops::add(ops::mul(z, ops::sigmoid(z)), ops::relu(z)); };
    Output hidden, loss;
    {
      const auto device = graph.with_device("/job:task/task:0");
      hidden = swish(ops::matmul(x, graph.variable("w", first)));
    }
    {
      const auto device = graph.with_device("/job:task/task:1");
      const Output y = ops::matmul(ops::add(hidden, ops::tanh(hidden)), graph.variable("v", second));
      loss = ops::add(ops::mse_loss(y, t), ops::l1_loss(swish(y), t));
    }
    return std::tuple(x, t, loss);
  };
  const auto optimizer = optim::SGD({.lr = 0.05});
  Graph whole;
  const auto [x, t, loss] = build(whole);
  const auto expected = trained("local", whole, x, t, loss, minimize(optimizer, loss), data);
  for (const auto schedule :
       {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
    for (const std::string& target : {std::string("local"), cluster.target()}) {
      Graph graph;
      const auto [small_x, small_t, small_loss] = build(graph);
      const Pipeline pipeline =
          minimize_in_pipeline(optimizer, small_loss, {.micro_batches = 4, .schedule = schedule});
      expect_near(trained(target, graph, pipeline.batch(small_x), pipeline.batch(small_t), pipeline.loss,
                          pipeline.train, data),
                  expected);
    }
  }
}

TEST(Pipeline, ALossMayBeASumOverTheBatch) {
  const Data data;
  const auto trained_by = [&](bool in_pipeline) {
    torch::manual_seed(4);
    Graph graph;
    const Output x = graph.placeholder("x", torch::kFloat, {kBatch, 6});
    const Output t = graph.placeholder("t", torch::kFloat, {kBatch, 6});
    const Output w = graph.variable("w", torch::randn({6, 6}));
    const Output loss = ops::mse_loss(ops::matmul(x, w), t, at::Reduction::Sum);
    const auto optimizer = optim::SGD({.lr = 0.001});
    if (!in_pipeline) return trained("local", graph, x, t, loss, minimize(optimizer, loss), data);
    const Pipeline pipeline =
        minimize_in_pipeline(optimizer, loss, {.micro_batches = 4, .loss_is_sum = true});
    return trained("local", graph, pipeline.batch(x), pipeline.batch(t), pipeline.loss, pipeline.train, data);
  };
  expect_near(trained_by(true), trained_by(false));
}

TEST(Pipeline, ALossThatIsNoMeanOverTheBatchIsNotTakenForOne) {
  for (const bool is_sum : {false, true}) {
    Graph graph;
    const Output x = graph.placeholder("x", torch::kFloat, {kBatch, 6});
    const Output w = graph.variable("w", torch::randn({6, 6}));
    const Output loss =
        ops::mse_loss(ops::matmul(x, w), x, is_sum ? at::Reduction::Sum : at::Reduction::Mean);
    try {
      minimize_in_pipeline(optim::SGD({.lr = 0.001}), loss, {.micro_batches = 2, .loss_is_sum = !is_sum});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(is_sum ? "set it to true" : "set it to false"));
    }
  }
}

// Each micro-batch is a batch to a batch norm; what it keeps of them is as in a loop over them.
TEST(Pipeline, RunningStatisticsAreThoseOfALoopOverMicroBatches) {
  torch::manual_seed(3);
  StagedNet net(2, /*with_norm=*/true);
  const Data data;
  const TestServers cluster(2);
  Graph graph;
  const auto traced = trace(graph, net, {torch::zeros({2, 6})});
  place(graph, table(2));
  const Output t = graph.placeholder("t", torch::kFloat, {kBatch, 6});
  const Pipeline pipeline = minimize_in_pipeline(optim::SGD({.lr = 0.1}), ops::mse_loss(traced.outputs[0], t),
                                                 {.micro_batches = 4});
  Session session(cluster.target(), graph, {.secret = "test"});
  session.run({}, {}, {graph.initializer()});
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    session.run({}, {{pipeline.batch(traced.inputs[0]), data.x}, {pipeline.batch(t), data.y}},
                {pipeline.train});
    optimizer.zero_grad();
    for (int i = 0; i < 4; ++i) {
      const auto part = [i](const torch::Tensor& all) { return all.slice(0, i * 6, (i + 1) * 6); };
      (torch::mse_loss(net->forward(part(data.x)), part(data.y)) / 4).backward();
    }
    optimizer.step();
  }
  for (const auto& entry : net->named_buffers()) {
    const torch::Tensor found = session.run({graph.output(entry.key())}).front();
    EXPECT_TRUE(found.allclose(entry.value(), 1e-4, 1e-5)) << entry.key();
  }
  for (const auto& entry : net->named_parameters()) {
    const torch::Tensor found = session.run({graph.output(entry.key())}).front();
    EXPECT_TRUE(found.allclose(entry.value(), 1e-4, 1e-5)) << entry.key();
  }
}

// An operator that counts for how many values autograd holds what the backward pass needs, by stage.
constexpr size_t kMostStages = 4;
std::array<std::atomic<int>, kMostStages> held_now{};
std::array<std::atomic<int>, kMostStages> held_at_most{};

struct HeldFunction : torch::autograd::Function<HeldFunction> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               int64_t stage, int64_t milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    auto& now = held_now.at(static_cast<size_t>(stage));
    auto& most = held_at_most.at(static_cast<size_t>(stage));
    most = std::max<int>(most, ++now);  // a stage has one thread
    static float nothing = 0;
    context->saved_data["held"] = torch::from_blob(&nothing, {1}, [&now](void* /*data*/) { --now; });
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0], torch::Tensor(), torch::Tensor()};
  }
};

torch::Tensor held(const torch::Tensor& x, int64_t stage, int64_t milliseconds) {
  return HeldFunction::apply(x, stage, milliseconds);
}

torch::Tensor slept(const torch::Tensor& x, int64_t milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  return x.clone();
}

TORCH_LIBRARY(muster_pipeline_test, library) {
  library.def("held(Tensor x, int stage, int milliseconds) -> Tensor");
  library.def("slept(Tensor x, int milliseconds) -> Tensor");
}
TORCH_LIBRARY_IMPL(muster_pipeline_test, Autograd, library) {
  library.impl("held", held);
}
TORCH_LIBRARY_IMPL(muster_pipeline_test, CPU, library) {
  library.impl("slept", slept);
}

TEST(Pipeline, StagesHoldNoMoreMicroBatchesThanTheScheduleSays) {
  constexpr int kStages = 3;
  constexpr int kMicroBatches = 8;
  constexpr int64_t kRows = 10'000;  // of a micro-batch: its values are large enough to be lent
  for (const auto schedule :
       {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
    const TestServers cluster(kStages);
    Graph graph;
    torch::manual_seed(5);
    const Output x = graph.placeholder("x", torch::kFloat, {kBatch, 6});
    Output y = x;
    for (int64_t stage = 0; stage < kStages; ++stage) {
      const auto device = graph.with_device(fmt::format("/job:task/task:{}", stage));
      y = ops::matmul(y, graph.variable(fmt::format("w{}", stage), torch::randn({6, 6})));
      // The last stage is so slow that it always has something to do, and no gaps for what was put off.
      y = graph.add("muster_pipeline_test::held", {y, stage, stage + 1 == kStages ? 3 : 0}).output();
      // The gradient of this one's parameter, which may be put off, needs what the operator before gave.
      y = ops::matmul(y, graph.variable(fmt::format("v{}", stage), torch::randn({6, 6})));
      if (stage + 1 == kStages) y = ops::mean(y);
    }
    const Pipeline pipeline = minimize_in_pipeline(optim::SGD({.lr = 0.1}), y,
                                                   {.micro_batches = kMicroBatches, .schedule = schedule});
    Session session(cluster.target(), graph, {.secret = "test"});
    session.run({}, {}, {graph.initializer()});
    for (int step = 0; step < 3; ++step) {
      for (auto& each : held_at_most) each = 0;
      session.run({}, {{pipeline.batch(x), torch::ones({kRows * kMicroBatches, 6})}}, {pipeline.train});
      for (int stage = 0; stage < kStages; ++stage) {
        const std::string where = fmt::format("schedule {}, stage {}", static_cast<int>(schedule), stage);
        const int most = held_at_most.at(static_cast<size_t>(stage));
        switch (schedule) {
          case PipelineSchedule::kGPipe:
            EXPECT_EQ(most, kMicroBatches) << where;
            break;
          case PipelineSchedule::k1F1B:
            EXPECT_LE(most, kStages - stage) << where;
            break;
          case PipelineSchedule::kZeroBubble:
            EXPECT_LE(most, kStages) << where;
            break;
        }
        EXPECT_GE(most, 1) << where;
        EXPECT_EQ(held_now.at(static_cast<size_t>(stage)), 0) << where;
      }
    }
  }
}

// One step of plain gradient descent with a rate of 1: what a variable loses is its gradient.
TEST(Pipeline, GradientsAreThoseOfPlainAutograd) {
  const auto options = torch::dtype(torch::kDouble);
  torch::manual_seed(6);
  const std::map<std::string, torch::Tensor> initial = {{"tied", torch::randn({6, 6}, options)},
                                                        {"middle", torch::randn({6, 6}, options)},
                                                        {"bias", torch::randn({6}, options)}};
  const torch::Tensor input = torch::randn({kSamples, 6}, options);
  const torch::Tensor wanted = torch::randn({kSamples, 6}, options);
  std::map<std::string, torch::Tensor> expected;
  {
    std::map<std::string, torch::Tensor> leaves;
    for (const auto& [name, value] : initial) leaves[name] = value.clone().requires_grad_();
    const auto first = torch::tanh(torch::matmul(input, leaves["tied"]));
    const auto second = torch::tanh(torch::matmul(first, leaves["middle"]) + leaves["bias"]);
    torch::mse_loss(torch::matmul(second, leaves["tied"].t()) + first, wanted).backward();
    for (const auto& [name, leaf] : leaves) expected[name] = leaf.grad();
  }
  for (const auto schedule :
       {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
    for (const int micro_batches : {2, 6}) {
      const TestServers cluster(3);
      Graph graph;
      std::map<std::string, Output> variables;
      const auto variable = [&](const std::string& name) {
        return variables[name] = graph.variable(name, initial.at(name));
      };
      const Output x = graph.placeholder("x", torch::kDouble, {kBatch, 6});
      const Output t = graph.placeholder("t", torch::kDouble, {kBatch, 6});
      Output tied, first, second, loss;
      {
        const auto device = graph.with_device("/job:task/task:0");
        tied = variable("tied");
        first = ops::tanh(ops::matmul(x, tied));
      }
      {
        const auto device = graph.with_device("/job:task/task:1");
        second = ops::tanh(ops::add(ops::matmul(first, variable("middle")), variable("bias")));
      }
      {
        const auto device = graph.with_device("/job:task/task:2");
        loss = ops::mse_loss(ops::add(ops::matmul(second, ops::t(tied)), first), t);
      }
      const Pipeline pipeline = minimize_in_pipeline(optim::SGD({.lr = 1}), loss,
                                                     {.micro_batches = micro_batches, .schedule = schedule});
      Session session(cluster.target(), graph, {.secret = "test"});
      session.run({}, {}, {graph.initializer()});
      session.run({}, {{pipeline.batch(x), input}, {pipeline.batch(t), wanted}}, {pipeline.train});
      for (const auto& [name, output] : variables) {
        const torch::Tensor gradient = initial.at(name) - session.run({output}).front();
        const double largest = expected.at(name).abs().max().item<double>();
        EXPECT_LT((gradient - expected.at(name)).abs().max().item<double>(), 1e-9 * largest)
            << name << ", schedule " << static_cast<int>(schedule) << ", " << micro_batches;
      }
    }
  }
}

TEST(Pipeline, EveryBackwardPassOfGPipeWaitsForTheLastForwardPass) {
  Graph graph;
  const Output x = graph.placeholder("x", torch::kFloat, {kBatch, 6});
  const Output w = graph.variable("w", torch::ones({6, 1}));
  minimize_in_pipeline(optim::SGD({.lr = 0.1}), ops::mean(ops::tanh(ops::matmul(x, w))),
                       {.micro_batches = 3, .schedule = PipelineSchedule::kGPipe});
  int gradients = 0;
  for (const auto& node : graph.nodes()) {
    if (node.op() != "muster::gradient") continue;
    ++gradients;
    ASSERT_EQ(node.get()->control.size(), 1) << node.name();
    EXPECT_THAT(node.get()->control.front()->name, HasSubstr("micro_2/mean"));
  }
  EXPECT_EQ(gradients, 3 * 3);
}

TEST(Pipeline, OfOneStageIsSaid) {
  std::string log;
  detail::set_log_sink([&log](std::string_view line) { log += line; });
  Graph graph;
  const Output x = graph.placeholder("x", torch::kFloat, {kBatch, 6});
  minimize_in_pipeline(optim::SGD({.lr = 0.1}),
                       ops::mean(ops::matmul(x, graph.variable("w", torch::zeros({6, 6})))));
  detail::set_log_sink({});
  EXPECT_THAT(log, HasSubstr("there is one stage; place() comes before it"));
}

TEST(Pipeline, WhatCanNotBeIsRefusedByName) {
  Graph graph;
  const Output x = graph.placeholder("x", torch::kFloat, {kBatch, 6});
  const Output w = graph.variable("w", torch::ones({6, 1}));
  const Output each = ops::matmul(x, w);
  const Output loss = ops::mean(each);
  const auto optimizer = optim::SGD({.lr = 0.1});
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { minimize_in_pipeline(optimizer, loss, {.micro_batches = 0}); }),
      HasSubstr("there are 0 micro-batches"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { minimize_in_pipeline(optimizer, each); }),
              HasSubstr("expected a scalar"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { minimize_in_pipeline(optimizer, ops::sum(w)); }),
              HasSubstr("no placeholder whose first dimension is the batch"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { minimize_in_pipeline(optimizer, ops::mean(x)); }),
              HasSubstr("no trainable variable"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                place(graph, {{"encoder*", "/job:task/task:0"}});
              }),
              HasSubstr("'encoder*'"));
  const Pipeline pipeline = minimize_in_pipeline(optimizer, loss, {.micro_batches = 4});
  EXPECT_THAT(message_of<InvalidArgument>([&] { static_cast<void>(pipeline.batch(w)); }), HasSubstr("w:0"));
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                session.run({}, {{pipeline.batch(x), torch::ones({6, 6})}}, {pipeline.train});
              }),
              HasSubstr("expected [4N, 6]"));
}

// Eight equal layers, and a node that costs nothing: no stage gets nearly all of it.
TEST(Stages, AreCutByMeasuredTimesAndTrainAsOneTask) {
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (int i = 0; i < 8; ++i) {
    net->push_back(torch::nn::Linear(256, 256));
    net->push_back(torch::nn::Tanh());
  }
  const torch::Tensor x = torch::rand({64, 256});
  const torch::Tensor y = torch::rand({64, 256});
  const TestServers cluster(2);
  std::vector<torch::Tensor> losses;
  for (const bool is_cut : {false, true}) {
    Graph graph;
    const auto traced = trace(graph, net, {torch::zeros({2, 256})});
    const Output t = graph.placeholder("t", torch::kFloat, {kBatch, 256});
    const Output loss = ops::mse_loss(traced.outputs[0], t);
    if (is_cut) {
      const auto stages =
          place_in_stages(loss, {"/job:task/task:0", "/job:task/task:1"}, {{traced.inputs[0], x}, {t, y}});
      ASSERT_EQ(stages.size(), 2);
      EXPECT_EQ(stages[0].first, "0/addmm");
      EXPECT_EQ(stages[1].last, "mse_loss");
      EXPECT_EQ(graph.find("0.weight").device(), "/job:task/task:0");
      EXPECT_EQ(graph.find("14.weight").device(), "/job:task/task:1");
      EXPECT_EQ(graph.find("14.weight/initial").device(), "/job:task/task:1");
      for (const auto& stage : stages) {
        EXPECT_GT(stage.forward.count(), 0);
        EXPECT_GT(stage.backward.count(), 0);
      }
    }
    const Node train = minimize(optim::SGD({.lr = 0.1}), loss);
    Session session(is_cut ? cluster.target() : "local", graph, {.secret = "test"});
    session.run({}, {}, {graph.initializer()});
    for (int i = 0; i < 3; ++i)
      losses.push_back(session.run({loss}, {{traced.inputs[0], x}, {t, y}}, {train}).front());
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(losses[i].allclose(losses[i + 3], 1e-5));
}

// One node takes ten times as long as each of the others: it is a stage of its own, wherever it is.
TEST(Stages, AreCutWhereTheTimesSaySo) {
  constexpr size_t kNodes = 8;
  for (const size_t slow : {size_t{0}, kNodes - 1}) {
    Graph graph;
    const Output x = graph.placeholder("x", torch::kFloat, {kBatch});
    Output y = x;
    for (size_t i = 0; i < kNodes; ++i)
      y = graph.add("muster_pipeline_test::slept", {y, i == slow ? 20 : 2})
              .output()
              .named(fmt::format("n{}", i));
    const auto stages = place_in_stages(y, {"/task:0", "/task:1"}, {{x, torch::ones({2})}});
    ASSERT_EQ(stages.size(), 2U);
    EXPECT_EQ(stages[0].last, slow == 0 ? "n0" : "n6");
    EXPECT_EQ(stages[1].first, slow == 0 ? "n1" : "n7");
  }
}

TEST(Stages, RefuseWhatCantBeCut) {
  Graph graph;
  const Output x = graph.placeholder("x", torch::kFloat, {kBatch});
  const Output loss = ops::sum(x);
  const auto refused = [&](const std::vector<std::string>& devices, const torch::Tensor& value) {
    try {
      place_in_stages(loss, devices, {{x, value}});
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refused({}, torch::ones({2})), HasSubstr("there are no devices"));
  EXPECT_THAT(refused({"/task:0", "/task:1"}, torch::ones({2})),
              HasSubstr("1 nodes can't be cut into 2 stages"));
  EXPECT_THAT(refused({"somewhere"}, torch::ones({2})), HasSubstr("somewhere"));
}

}  // namespace
}  // namespace muster
