#include "graph/placed_graph.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "muster/error.h"
#include "muster/ops.h"

namespace muster::detail {
namespace {

using ::testing::HasSubstr;

constexpr const char* kTwoJobs = "ps=h1:2222;worker=h2:2222,h3:2222";

// w, of 120 bytes, on the parameter server; the rest on a worker.
struct SmallModel {
  SmallModel() {
    {
      const auto ps = graph.with_device("/job:ps");
      w = graph.variable("w", at::zeros({10, 3}));
    }
    const auto worker = graph.with_device("/job:worker");
    x = graph.placeholder("x", at::kFloat, {kBatch, 3});
    y = ops::linear(x, w).named("y");
    loss = ops::mean(y).named("loss");
    train = minimize(optim::SGD({.lr = 0.1}), loss);
  }

  Graph graph;
  Output w, x, y, loss;
  Node train;
};

std::string refused_placement(const Graph& graph, const PlaceRequest& request) {
  try {
    const PlacedGraph placed(graph, request);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(PlacedGraph, CountsWhatTasksHaveAndWhatGoesBetweenThem) {
  const SmallModel model;
  const PlacedGraph placed(model.graph, {.cluster = kTwoJobs, .fetches = {"loss"}, .targets = {"train"}});
  const auto tasks = placed.figures();
  ASSERT_EQ(tasks.size(), 3);
  EXPECT_EQ(tasks[0].nodes, 2) << "w and its update";
  EXPECT_EQ(tasks[0].variables, ValueBytes(120));
  EXPECT_EQ(tasks[1].nodes, 6) << "y, loss, ones, two derivatives, train";
  EXPECT_EQ(tasks[2].nodes, 0);
  const auto routes = placed.routes();
  ASSERT_EQ(routes.size(), 2);
  EXPECT_EQ(routes[0].bytes, ValueBytes(120));
  EXPECT_EQ(routes[0].crossings.front().name, "w:0");
  EXPECT_EQ(routes[1].bytes, ValueBytes(120));
  ASSERT_EQ(routes[1].from, 1);
}

TEST(PlacedGraph, SaysItAllAsText) {
  const SmallModel model;
  const PlacedGraph placed(model.graph, {.cluster = kTwoJobs, .fetches = {"loss"}});
  EXPECT_EQ(placed.to_text({}),
            "x: (muster::placeholder): fed to worker/0\n"
            "w: (muster::variable): /job:ps/replica:0/task:0/device:cpu:0\n"
            "y: (aten::linear): /job:worker/replica:0/task:0/device:cpu:0\n"
            "loss: (aten::mean): /job:worker/replica:0/task:0/device:cpu:0\n"
            "\n"
            "task              nodes     variables     constants\n"
            "ps/0                  1         120 B           0 B\n"
            "worker/0              2           0 B           0 B\n"
            "worker/1              0           0 B           0 B\n"
            "all                   3         120 B           0 B\n"
            "\n"
            "ps/0 to worker/0: 120 B in 1 edge\n"
            "         120 B  w:0\n"
            "\n"
            "From task to task: 120 B in 1 edge.\n");
}

TEST(PlacedGraph, SizesInJsonAreOfABatchOrOfItsPowers) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 3});
  const Output y = ops::relu(x).named("y");
  const auto other = graph.with_device("/task:1");
  ops::relu(y).named("z");
  const PlacedGraph placed(graph, {.cluster = "worker=h2:2222,h3:2222"});
  const auto any = nlohmann::json::parse(placed.to_json({}));
  EXPECT_EQ(any["edges"][0]["bytes"], nlohmann::json({0, 12}));
  EXPECT_EQ(any["edges"][0]["name"], "y:0");
  EXPECT_EQ(any["nodes"][1]["task"], "worker/1");
  const auto some = nlohmann::json::parse(placed.to_json(64));
  EXPECT_EQ(some["bytes"], 768);
  EXPECT_EQ(some["feeds"][0]["bytes"], 768);
}

TEST(PlacedGraph, TheSessionsTaskIsWhereNodesWithoutADeviceAre) {
  Graph graph;
  ops::relu(graph.constant(at::zeros({3}))).named("y");
  const PlacedGraph first(graph, {.cluster = kTwoJobs});
  EXPECT_EQ(first.task(*first.nodes().front()), 0);
  const PlacedGraph other(graph, {.cluster = kTwoJobs, .session_task = "worker/1"});
  EXPECT_EQ(other.task(*other.nodes().front()), 2);
  EXPECT_THAT(other.to_text({}), HasSubstr("Nothing goes from task to task."));
  EXPECT_EQ(other.figures()[2].constants, ValueBytes(12));
}

TEST(PlacedGraph, WhatIsNotThereIsNamed) {
  const SmallModel model;
  EXPECT_THAT(refused_placement(model.graph, {.cluster = kTwoJobs, .fetches = {"lost"}}), HasSubstr("lost"));
  EXPECT_THAT(refused_placement(model.graph, {.cluster = kTwoJobs, .targets = {"trains"}}),
              HasSubstr("did you mean train?"));
  EXPECT_THAT(refused_placement(model.graph, {.cluster = kTwoJobs, .session_task = "ps/7"}),
              HasSubstr("it has ps/0, worker/0, worker/1"));
  EXPECT_THAT(refused_placement(model.graph, {.cluster = "worker=h1:2222"}),
              HasSubstr("placed on /job:ps, which the cluster does not have"));
  EXPECT_THAT(refused_placement(model.graph, {.cluster = "worker=h1:2222", .soft_placement = true}), "");
  EXPECT_THAT(refused_placement(model.graph, {.cluster = "nonsense"}), HasSubstr("nonsense"));
}

}  // namespace
}  // namespace muster::detail
