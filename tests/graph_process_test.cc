// `muster graph` as users run it: on files that are as they should be, and on others.

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "muster/graph.h"
#include "muster/ops.h"
#include "muster/testing/process_cluster.h"
#include "muster/testing/test_main.h"

namespace muster::detail {
namespace {

using ::testing::AllOf;
using testing::beside_self;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProcessCluster;
using testing::soon;

constexpr const char* kCluster = "ps=h1:2222;worker=h2:2222,h3:2222";

// A folder with a graph in model.pb: a linear model, its weights on the parameter server.
class GraphCommand : public ::testing::Test {
 protected:
  GraphCommand() {
    std::string name = (std::filesystem::temp_directory_path() / "graph.XXXXXX").string();
    folder_ = mkdtemp(name.data());
    Graph graph;
    Output w;
    {
      const auto ps = graph.with_device("/job:ps");
      w = graph.variable("layer/w", torch::zeros({10, 784}));
    }
    const auto worker = graph.with_device("/job:worker");
    const Output x = graph.placeholder("x", torch::kFloat, {kBatch, 784});
    const Output t = graph.placeholder("t", torch::kLong, {kBatch});
    const Output loss = ops::cross_entropy_loss(ops::linear(x, w), t).named("loss");
    minimize(optim::SGD({.lr = 0.1}), loss);
    graph.save(file("model.pb"));
  }
  ~GraphCommand() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name) const { return folder_ / name; }

  static ProcessCluster::Result run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {beside_self("muster"), "graph"});
    ProcessCluster cluster;
    return cluster.wait(cluster.start({.command = arguments}), soon());
  }

  static std::string text_of(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }

  static void expect_is_xml(const std::string& path) {
    ProcessCluster cluster;
    const std::string script =
        "import sys, xml.etree.ElementTree as tree; print(tree.parse(sys.argv[1]).getroot().tag)";
    const auto result =
        cluster.wait(cluster.start({.command = {MUSTER_TEST_PYTHON, "-c", script, path}}), soon());
    EXPECT_EQ(result.output, "{http://www.w3.org/2000/svg}svg\n");
  }

  std::filesystem::path folder_;
};

TEST_F(GraphCommand, ShowPrintsNodes) {
  const auto result = run({"show", file("model.pb")});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("layer/w: (muster::variable): /job:ps: float32 [10, 784]\n"),
                    HasSubstr("linear: (aten::linear): /job:worker: float32 [N, 10] <- x:0, layer/w:0\n"),
                    HasSubstr("train: (muster::group): /job:worker <- ^layer/w/update\n")));
}

TEST_F(GraphCommand, ShowDraws) {
  const auto result = run({"show", file("model.pb"), "--svg", "-o", file("model.svg")});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  expect_is_xml(file("model.svg"));
  EXPECT_THAT(text_of(file("model.svg")),
              AllOf(HasSubstr(">linear<"), HasSubstr(">loss<"), HasSubstr("layer/w"), HasSubstr(">/job:ps<"),
                    HasSubstr("30.6 KiB"), HasSubstr("stroke-dasharray")));
  const auto dot = run({"show", file("model.pb"), "--dot", "--without-gradients"});
  EXPECT_EQ(dot.exit_code, 0) << dot.output;
  EXPECT_THAT(dot.output, AllOf(HasSubstr("digraph muster {"), Not(HasSubstr("gradient"))));
}

TEST_F(GraphCommand, ALongGraphIsDrawnInFewBoxesAndSaysSo) {
  Graph graph;
  Output x = graph.placeholder("x", torch::kFloat, {kBatch, 8});
  for (int i = 0; i < 1000; ++i) x = ops::relu(x);
  graph.save(file("long.pb"));
  const auto result = run({"show", file("long.pb"), "--svg", "-o", file("long.svg")});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("1001 nodes are drawn as 3 boxes"));
  expect_is_xml(file("long.svg"));
}

TEST_F(GraphCommand, PlaceGivesTheFiguresOfTasksAndEdges) {
  const auto result = run({"place", file("model.pb"), "--cluster", kCluster, "--session-task", "worker/0",
                           "--fetch", "loss:0", "--target", "train", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto json = nlohmann::json::parse(result.output);
  EXPECT_EQ(json["tasks"], nlohmann::json::parse(R"([
      {"task": "ps/0", "nodes": 2, "variables": [31360], "constants": [0]},
      {"task": "worker/0", "nodes": 6, "variables": [0], "constants": [0]},
      {"task": "worker/1", "nodes": 0, "variables": [0], "constants": [0]}])"));
  ASSERT_EQ(json["edges"].size(), 3);
  EXPECT_EQ(
      json["edges"][0],
      nlohmann::json::parse(R"({"from": "ps/0", "to": "worker/0", "name": "layer/w:0", "bytes": [31360]})"));
  EXPECT_EQ(json["edges"][1]["name"], "^layer/w/update");
  EXPECT_EQ(json["edges"][2]["name"], "gradients/linear:0");
  EXPECT_EQ(json["bytes"], nlohmann::json({62720}));
  const auto text = run({"place", file("model.pb"), "--cluster", kCluster, "--fetch", "linear"});
  EXPECT_EQ(text.exit_code, 0) << text.output;
  EXPECT_THAT(text.output, HasSubstr("From task to task: 30.6 KiB in 1 edge.\n"));
}

TEST_F(GraphCommand, PlaceDraws) {
  const auto result = run(
      {"place", file("model.pb"), "--cluster", kCluster, "--svg", "--batch", "64", "-o", file("placed.svg")});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  expect_is_xml(file("placed.svg"));
  EXPECT_THAT(text_of(file("placed.svg")),
              AllOf(HasSubstr(">worker/0<"), HasSubstr(">fed<"), HasSubstr("layer/w")));
}

TEST_F(GraphCommand, ScheduleComparesAndPrintsTimetables) {
  const auto all = run({"schedule", "--stages", "2", "--micro-batches", "8"});
  EXPECT_EQ(all.exit_code, 0) << all.output;
  EXPECT_THAT(all.output, AllOf(HasSubstr("\ngpipe              27   11.1 %  8, 8\n"),
                                HasSubstr("\nzero-bubble        25    4.0 %  2, 2\n")));
  const auto one = run({"schedule", "--schedule", "1f1b", "--micro-batches", "3", "--times", "1:2,1:2"});
  EXPECT_EQ(one.exit_code, 0) << one.output;
  EXPECT_THAT(one.output,
              AllOf(HasSubstr("stage 1  .  F0 B0--- F1 B1--- F2 B2---"), Not(HasSubstr("gpipe"))));
}

TEST_F(GraphCommand, WhatCannotBeReadOrWrittenIsNamed) {
  std::ofstream(file("text.pb")) << "this is no graph, but a text that somebody wrote";
  const std::string whole = text_of(file("model.pb"));
  std::ofstream(file("half.pb"), std::ios::binary) << whole.substr(0, whole.size() / 2);
  std::filesystem::remove(file("model.pb.tensors"));
  struct Case {
    std::vector<std::string> arguments;
    int exit_code;
    std::string expected;
  };
  const Case cases[] = {{{"show", file("missing.pb")}, 1, "missing.pb"},
                        {{"show", file("text.pb")}, 1, "text.pb' is no graph of Muster's, or truncated"},
                        {{"show", file("half.pb")}, 1, "half.pb"},
                        {{"show", file("model.pb")}, 1, "model.pb.tensors"},
                        {{"place", file("missing.pb"), "--cluster", kCluster}, 1, "missing.pb"},
                        {{"show", file("missing.pb"), "--svg", "--dot"}, 2, "--dot"},
                        {{"show"}, 2, "graph"},
                        {{}, 2, "subcommand"}};
  for (const auto& [arguments, exit_code, expected] : cases) {
    const auto result = run(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.output;
    EXPECT_THAT(result.output, HasSubstr(expected));
  }
}

TEST_F(GraphCommand, BadCommandLinesAreRefused) {
  const std::string model = file("model.pb");
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"place", model}, "--cluster"},
      {{"place", model, "--cluster", "nonsense"}, "nonsense"},
      {{"place", model, "--cluster", "worker=h1:2222"}, "which the cluster does not have"},
      {{"place", model, "--cluster", kCluster, "--fetch", "lost"}, "lost"},
      {{"place", model, "--cluster", kCluster, "--target", "trein"}, "did you mean train?"},
      {{"place", model, "--cluster", kCluster, "--session-task", "worker/9"}, "worker/9"},
      {{"place", model, "--cluster", kCluster, "--batch", "0"}, "--batch"},
      {{"place", model, "--cluster", kCluster, "--json", "--svg"}, "--json"},
      {{"show", model, "--svg", "--depth", "-1"}, "--depth"},
      {{"show", model, "--depth", "1"}, "add --svg or --dot"},
      {{"schedule", "--schedule", "fast"}, "fast"},
      {{"schedule", "--stages", "0"}, "--stages"},
      {{"schedule", "--schedule", "1f1b", "--weight-share", "0.9"}, "--weight-share is for"},
      {{"schedule", "--stages", "3", "--times", "1:2,1:2"}, "2 stages"},
      {{"schedule", "--times", "1:2,x"}, "'x'"},
      {{"schedule", "--times", "1:-2"}, "takes"},
      {{"schedule", "--times", "1:2", "--forward", "1"}, "--times"}};
  for (const auto& [arguments, expected] : cases) {
    const auto result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.output;
    EXPECT_THAT(result.output, HasSubstr(expected));
  }
  const auto unwritable = run({"show", model, "-o", file("no/such/folder.txt")});
  EXPECT_EQ(unwritable.exit_code, 1);
  EXPECT_THAT(unwritable.output, HasSubstr("no/such/folder.txt"));
}

}  // namespace
}  // namespace muster::detail

int main(int argc, char** argv) {
  return muster::detail::testing::run_tests(argc, argv);
}
