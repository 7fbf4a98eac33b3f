#include <chrono>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/error.h"
#include "muster/graph/graph_proto.h"
#include "muster/graph/partitioner.h"
#include "muster/ops.h"
#include "muster/runtime/program.h"
#include "muster/session.h"

namespace muster::detail {
namespace {

using ::testing::HasSubstr;

// Derivatives of one call are one pass of autograd. Here what one of them takes is computed of what another
// one gives: no functions of Graph make that, but a message may say it.
TEST(Compiler, ACycleThroughDerivativesIsRefused) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {2});
  const Output first = ops::tanh(x);
  const Output second = ops::sin(x);
  const Output one = gradients({first}, {x}).front();
  const Output between = ops::mul(one, 2).named("between");
  const Output other = gradients({second}, {x}, {between}).front();
  const std::string name = other.node().name();
  Container container;
  static_cast<void>(Program({.feeds = {x}, .fetches = {other}}, container));
  SavedGraph saved = to_proto(graph);
  int changed = 0;
  for (auto& node : *saved.proto.mutable_nodes()) {
    if (node.op() != "muster::gradient") continue;
    node.mutable_arguments(3)->mutable_value()->set_integer(1);
    ++changed;
  }
  ASSERT_EQ(changed, 2);
  const Graph read = from_proto(saved.proto, saved.tensors);
  try {
    static_cast<void>(Program({.feeds = {read.output("x")}, .fetches = {read.output(name)}}, container));
    ADD_FAILURE() << "it was compiled";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("the graph has a cycle through node 'between' (aten::mul"));
  }
}

// The most memory that the process has had, in MiB, since it was last asked to forget it.
double most_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}

// Each link of a chain on one task takes another value of the other task: the set of values that a link
// needs, written out for each, would be 200 million numbers.
TEST(Compiler, AChainThatTakesManyValuesOfAnotherTaskCostsItsLength) {
  constexpr int kCrossings = 20'000;
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {});
  Output carry = x;
  for (int i = 0; i < kCrossings; ++i) {
    Output there;
    {
      const auto other = graph.with_device("/job:b");
      there = ops::relu(carry);
    }
    const auto here = graph.with_device("/job:a");
    carry = ops::add(carry, there);
  }
  const Signature signature{.feeds = {x}, .fetches = {carry}};
  const auto nodes = needed_nodes(signature);
  const auto cut =
      partition(signature, nodes, place(nodes, {.tasks = {TaskName::of("a", 0), TaskName::of("b", 0)}}));
  ASSERT_EQ(cut.parts.size(), 2U);
  std::ofstream("/proc/self/clear_refs") << 5;  // what it had until now is forgotten
  const double before = most_memory();
  const auto begin = std::chrono::steady_clock::now();
  Container container;
  const Program program(cut.parts[0].signature, container);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_LT(most_memory() - before, 200);
  ASSERT_EQ(program.received.size(), static_cast<size_t>(kCrossings));
  // Each block waits for one value and for the link before.
  EXPECT_GE(program.blocks.size(), static_cast<size_t>(kCrossings));
  for (size_t i = 2; i < program.blocks.size(); ++i) EXPECT_EQ(program.blocks[i].missing, 2U) << i;
}

TEST(Compiler, OfALargeGraphOnlyWhatIsNeededIsRun) {
  constexpr int kNodes = 100'000;
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {});
  std::vector<Output> all = {x};
  for (int i = 0; i < kNodes; ++i) all.push_back(ops::add(all.back(), 1));
  Container container;
  const Program few({.feeds = {x}, .fetches = {all[10]}}, container);
  EXPECT_EQ(few.instructions.size(), 10U);
  Session session("local", graph);
  EXPECT_EQ(session.run({all.back()}, {{x, torch::zeros({})}}).front().item<float>(), kNodes);
}

}  // namespace
}  // namespace muster::detail
