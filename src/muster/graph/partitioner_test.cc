#include "muster/graph/partitioner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "muster/graph/graph_proto.h"
#include "muster/ops.h"

namespace muster::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::vector<TaskName> kThreeTasks = {TaskName::of("a", 0), TaskName::of("b", 0), TaskName::of("c", 0)};

Partition cut(const Signature& signature) {
  const auto nodes = needed_nodes(signature);
  return partition(signature, nodes, place(nodes, {.tasks = kThreeTasks}));
}

std::vector<std::string> names_of(const Part& part) {
  std::vector<std::string> names;
  for (const auto& node : part.graph.nodes()) names.push_back(node.name());
  return names;
}

TEST(Partitioner, OneTaskIsNotCut) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat);
  const Output y = ops::relu(x).named("y");
  const Partition made = cut({.feeds = {x}, .fetches = {y}});
  ASSERT_THAT(made.parts, SizeIs(1));
  EXPECT_THAT(made.edges, IsEmpty());
  EXPECT_THAT(names_of(made.parts[0]), ElementsAre("x", "y"));
  EXPECT_THAT(made.parts[0].feeds, ElementsAre(0));
  EXPECT_THAT(made.parts[0].fetches, ElementsAre(0));
}

// y is used twice on b and once on c: it is sent to each once.
TEST(Partitioner, AValueIsSentToATaskOnce) {
  Graph graph;
  const Output x = graph.constant(1.0, at::kFloat, "x");
  const Output y = ops::relu(x).named("y");
  Output first, second, third;
  {
    const auto b = graph.with_device("/job:b");
    first = ops::relu(y).named("first");
    second = ops::add(y, first).named("second");
  }
  {
    const auto c = graph.with_device("/job:c");
    third = ops::add(y, second).named("third");
  }
  const Partition made = cut({.fetches = {third, second}});
  ASSERT_THAT(made.parts, SizeIs(3));
  EXPECT_THAT(names_of(made.parts[0]), ElementsAre("x", "y", "send/y", "send/y_1"));
  EXPECT_THAT(names_of(made.parts[1]), ElementsAre("receive/y", "first", "second", "send/second"));
  EXPECT_THAT(names_of(made.parts[2]), ElementsAre("receive/y", "receive/second", "third"));
  EXPECT_THAT(made.parts[0].peers, ElementsAre(1, 2));
  EXPECT_THAT(made.parts[1].fetches, ElementsAre(1));
  EXPECT_THAT(made.parts[2].fetches, ElementsAre(0));
  ASSERT_THAT(made.edges, SizeIs(3));
  EXPECT_EQ(made.edges[0].output, y);
  // How often the longest way goes from task to task.
  EXPECT_EQ(made.parts[1].graph.find("second").get()->depth, 1);
  EXPECT_EQ(made.parts[2].graph.find("third").get()->depth, 2);
}

TEST(Partitioner, WhatIsFedGoesToAllWhoUseIt) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat);
  const Output here = ops::relu(x);
  const auto b = graph.with_device("/job:b");
  const Output there = ops::relu(x);
  const Partition made = cut({.feeds = {x}, .fetches = {here, there, x}});
  ASSERT_THAT(made.parts, SizeIs(2));
  EXPECT_THAT(made.edges, IsEmpty());
  EXPECT_THAT(made.parts[0].feeds, ElementsAre(0));
  EXPECT_THAT(made.parts[1].feeds, ElementsAre(0));
  EXPECT_THAT(made.parts[0].fetches, ElementsAre(0, 2));
}

TEST(Partitioner, WaitingForANodeElsewhereIsAMessageWithoutAValue) {
  Graph graph;
  Output w;
  {
    const auto b = graph.with_device("/job:b");
    w = graph.variable("w", torch::ones({2}));
  }
  const Output assigned = graph.assign(w, graph.constant(torch::zeros({2})));
  const auto after = graph.control_dependencies({assigned});
  const Output last = graph.constant(2.0, at::kFloat, "last");
  const Partition made = cut({.fetches = {last}});
  ASSERT_THAT(made.edges, SizeIs(2));
  EXPECT_TRUE(made.edges[1].is_control);
  EXPECT_EQ(made.edges[1].from, 1U);
}

TEST(Partitioner, PartsSurviveBeingSentAsMessages) {
  Graph graph;
  Output w;
  {
    const auto b = graph.with_device("/job:b");
    w = graph.variable("w", torch::ones({3}));
  }
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 3});
  const Node step = minimize(optim::SGD({.lr = 0.1}), ops::sum(ops::mul(w, x)));
  for (const auto& part : cut({.feeds = {x}, .targets = {step}}).parts) {
    const SavedGraph saved = to_proto(part.graph);
    const Graph read = from_proto(saved.proto, saved.tensors);
    EXPECT_EQ(to_proto(read).proto.SerializeAsString(), saved.proto.SerializeAsString());
  }
}

TEST(Partitioner, WhatCanNotTravelIsRefused) {
  Graph graph;
  Output text;
  {
    const auto ps = graph.with_device("/job:a/task:0");
    text = graph.value(std::string("floor"), "text");
  }
  const auto b = graph.with_device("/job:b");
  const Output x = graph.constant(torch::ones({2}));
  const Node divided = graph.add("aten::div.Tensor_mode", {x, x}, {{"rounding_mode", text}});
  try {
    cut({.targets = {divided}});
    ADD_FAILURE() << "it was cut";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("a str can't go from task to task"));
  }
}

}  // namespace
}  // namespace muster::detail
