#include "muster/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/error.h"
#include "muster/graph/graph_node.h"
#include "muster/ops.h"
#include "muster/runtime/server_test.h"
#include "muster/session.h"
#include "muster/stages.h"
#include "muster/trace.h"

namespace muster {
namespace {

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

class PipelineTest : public testing::TestWithParam<Case> {};

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
    testing::Values(Case{1, 4, PipelineSchedule::kZeroBubble}, Case{2, 1, PipelineSchedule::kZeroBubble},
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

template <typename Function>
std::string refused_pipeline(Function function) {
  try {
    function();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Pipeline, WhatCanNotBeIsRefusedByName) {
  Graph graph;
  const Output x = graph.placeholder("x", torch::kFloat, {kBatch, 6});
  const Output w = graph.variable("w", torch::ones({6, 1}));
  const Output each = ops::matmul(x, w);
  const Output loss = ops::mean(each);
  const auto optimizer = optim::SGD({.lr = 0.1});
  EXPECT_THAT(refused_pipeline([&] { minimize_in_pipeline(optimizer, loss, {.micro_batches = 0}); }),
              HasSubstr("there are 0 micro-batches"));
  EXPECT_THAT(refused_pipeline([&] { minimize_in_pipeline(optimizer, each); }),
              HasSubstr("expected a scalar"));
  EXPECT_THAT(refused_pipeline([&] { minimize_in_pipeline(optimizer, ops::sum(w)); }),
              HasSubstr("no placeholder whose first dimension is the batch"));
  EXPECT_THAT(refused_pipeline([&] { minimize_in_pipeline(optimizer, ops::mean(x)); }),
              HasSubstr("no trainable variable"));
  EXPECT_THAT(refused_pipeline([&] {
                place(graph, {{"encoder*", "/job:task/task:0"}});
              }),
              HasSubstr("'encoder*'"));
  const Pipeline pipeline = minimize_in_pipeline(optimizer, loss, {.micro_batches = 4});
  EXPECT_THAT(refused_pipeline([&] { static_cast<void>(pipeline.batch(w)); }), HasSubstr("w:0"));
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  EXPECT_THAT(refused_pipeline([&] {
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
