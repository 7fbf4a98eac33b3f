#include "muster/graph/placer.h"

#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "muster/graph/graph_proto.h"
#include "muster/graph/signature.h"
#include "muster/ops.h"

namespace muster::detail {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<TaskName> kTasks = {TaskName::of("ps", 0), TaskName::of("ps", 1), TaskName::of("worker", 0),
                                      TaskName::of("worker", 1)};

GraphPlacement placed(const std::vector<Node>& targets, bool soft = false,
                      const std::vector<Output>& feeds = {}) {
  return place(needed_nodes({.feeds = feeds, .targets = targets}),
               {.tasks = kTasks, .default_task = 2, .soft = soft});
}

TEST(Placer, PartsOfNamesAreFilledIn) {
  Graph graph;
  const auto make = [&graph](const char* device) {
    const auto scope = graph.with_device(device);
    return graph.constant(1.0);
  };
  const Output nothing = graph.constant(1.0);
  const std::pair<Output, const char*> cases[] = {
      {nothing, "/job:worker/replica:0/task:0/device:cpu:0"},
      {make("/job:ps"), "/job:ps/replica:0/task:0/device:cpu:0"},
      {make("/task:1"), "/job:ps/replica:0/task:1/device:cpu:0"},
      {make("/job:worker/task:1"), "/job:worker/replica:0/task:1/device:cpu:0"},
      {make("/job:worker/task:1/cpu:0"), "/job:worker/replica:0/task:1/device:cpu:0"},
      {make("/cpu:0"), "/job:worker/replica:0/task:0/device:cpu:0"}};
  for (const auto& [output, device] : cases)
    EXPECT_EQ(placed({output}).device(*output.get()), device) << output.node().device();
}

TEST(Placer, WhatBelongsToAVariableOrANodeIsWhereThatIs) {
  Graph graph;
  Output w;
  {
    const auto ps = graph.with_device("/job:ps/task:1");
    w = graph.variable("w", torch::ones({2}));
  }
  const auto worker = graph.with_device("/job:worker/task:1");
  const Output loss = ops::sum(ops::mul(w, w));
  const Node step = minimize(optim::SGD({.lr = 0.1}), loss);
  const Output read = graph.read(w);
  const Output assigned = graph.assign(w, read);
  const GraphPlacement placement = placed({step, read, assigned, loss});
  EXPECT_EQ(placement.task(*read.get()), 1U);
  EXPECT_EQ(placement.task(*assigned.get()), 1U);
  EXPECT_EQ(placement.task(*loss.get()), 3U);
  for (const auto& node : graph.nodes()) {
    if (node.op() == "muster::update") {
      EXPECT_EQ(placement.task(*node.get()), 1U);
    }
    if (node.op() == "muster::gradient") {
      EXPECT_EQ(placement.task(*node.get()), 3U);
    }
  }
}

TEST(Placer, NodesAreBesideTheOneThatAScopeNames) {
  Graph graph;
  Output w, beside, inner, far_from_it, read;
  {
    const auto ps = graph.with_device("/job:ps/task:1");
    w = graph.variable("w", torch::ones({2}));
  }
  Output slot;
  {
    const auto worker = graph.with_device("/job:worker/task:1");
    {
      const auto scope = graph.colocate_with(w);
      beside = graph.constant(1.0);
      slot = graph.variable("slot", torch::ones({2}));
      {
        const auto task = graph.with_device("/task:1");  // which fits
        const auto next = graph.colocate_with(beside);
        inner = ops::relu(beside);
      }
      {
        const auto elsewhere = graph.with_device("/job:ps/task:0");
        read = graph.read(slot);  // belongs to it, whatever scope it is in
      }
    }
    far_from_it = ops::relu(w);
  }
  const Output after = ops::relu(w);
  const Output loss = ops::sum(inner);
  const Output gradient = gradients({loss}, {beside}).front();
  const GraphPlacement placement = placed({beside, slot, inner, read, far_from_it, after, gradient});
  for (const auto& output : {beside, slot, inner, read, gradient})
    EXPECT_EQ(placement.task(*output.get()), 1U) << output.name();
  EXPECT_EQ(placement.task(*far_from_it.get()), 3U) << "the outer device holds again";
  EXPECT_EQ(placement.task(*after.get()), 2U);
  Graph other;
  EXPECT_THROW(static_cast<void>(other.colocate_with(w)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(graph.colocate_with(Node())), InvalidArgument);
}

TEST(Placer, ADeviceThatDoesNotFitTheNodeThatOneIsBesideIsRefusedUnlessPlacementIsSoft) {
  Graph graph;
  Output w, x;
  {
    const auto ps = graph.with_device("/job:ps");
    w = graph.variable("w", torch::ones({2}));
  }
  {
    const auto scope = graph.colocate_with(w);
    const auto worker = graph.with_device("/job:worker");
    x = graph.constant(1.0, at::kFloat, "x");
  }
  try {
    placed({x});
    ADD_FAILURE() << "it was placed";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("node 'x' (muster::constant, made at placer_test.cc"),
                      HasSubstr("is placed on /job:worker, and colocated with node 'w' (muster::variable, "),
                      HasSubstr("which is placed on /job:ps, that is on /job:ps/replica:0/task:0/")));
  }
  EXPECT_EQ(placed({x}, /*soft=*/true).task(*x.get()), 0U) << "it is beside the other one";
}

// As a message may hold one: a chain that is followed anew for each node would take minutes.
TEST(Placer, ALongChainOfNodesCostsItsLength) {
  constexpr uint32_t kNodes = 200'000;
  graph::GraphProto proto = [] {
    Graph graph;
    graph.constant(1.0, at::kFloat, "first");
    return to_proto(graph).proto;
  }();
  proto.mutable_nodes(0)->set_device("/job:ps/task:1");
  for (uint32_t i = 1; i < kNodes; ++i) {
    auto& node = *proto.add_nodes();
    node.set_name("group" + std::to_string(i));
    node.set_op("muster::group");
    if (i % 2 == 0) {
      node.set_colocated(i);  // the number of the one before, plus 1
    } else {
      node.set_beside(i);
    }
  }
  const Graph graph = from_proto(proto, {});
  const auto begin = std::chrono::steady_clock::now();
  const GraphPlacement placement = placed(graph.nodes());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_EQ(placement.task(*graph.nodes().back().get()), 1U);
  // One node anew for each, the last first.
  PlacingNodes placing_nodes;
  const auto nodes = graph.nodes();
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node)
    EXPECT_EQ(&placing_nodes.of(*node->get()), nodes.front().get());
}

TEST(ReplicaDeviceSetter, SpreadsVariablesOverTheServers) {
  for (const bool by_bytes : {false, true}) {
    Graph graph;
    const auto scope = graph.with_device(
        replica_device_setter({.ps_tasks = 2, .worker_device = "/job:worker/task:1", .by_bytes = by_bytes}));
    const Output large = graph.variable("large", torch::zeros({100}));
    const Output small = graph.variable("small", torch::zeros({2}));
    const Output third = graph.variable("third", torch::zeros({3}));
    EXPECT_EQ(large.node().device(), "/job:ps/task:0");
    EXPECT_EQ(small.node().device(), "/job:ps/task:1");
    EXPECT_EQ(third.node().device(), by_bytes ? "/job:ps/task:1" : "/job:ps/task:0");
    EXPECT_EQ(ops::relu(small).node().device(), "/job:worker/task:1");
  }
  EXPECT_THROW(replica_device_setter({.ps_tasks = 0}), InvalidArgument);
}

TEST(Placer, ADeviceThatIsNotThereIsRefusedUnlessPlacementIsSoft) {
  Graph graph;
  Output gpu;
  Output far;
  {
    const auto scope = graph.with_device("/job:ps/task:1/gpu:0");
    gpu = graph.constant(1.0, at::kFloat, "on_gpu");
  }
  {
    const auto scope = graph.with_device("/job:ps/task:7");
    far = graph.constant(1.0);
  }
  try {
    placed({gpu});
    ADD_FAILURE() << "it was placed";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("node 'on_gpu' (muster::constant, made at "), HasSubstr("placer_test.cc"),
                      HasSubstr("/job:ps/task:1/device:gpu:0, which the cluster does not have; it has "
                                "/job:ps/replica:0/task:0/device:cpu:0, ")));
  }
  EXPECT_THROW(placed({far}), InvalidArgument);
  EXPECT_EQ(placed({gpu}, /*soft=*/true).task(*gpu.get()), 1U) << "the rest of the name holds";
  EXPECT_EQ(placed({far}, /*soft=*/true).task(*far.get()), 2U);
}

}  // namespace
}  // namespace muster::detail
