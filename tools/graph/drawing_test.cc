#include "graph/drawing.h"

#include "graph/drawing_dot.h"
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/ops.h"

namespace muster::detail {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::vector<PlacedNode> placed_by_device(const Graph& graph) {
  std::vector<PlacedNode> nodes;
  for (const auto& node : graph.data().nodes) nodes.push_back({&node, node.device});
  return nodes;
}

// `layers` scopes of three nodes each, the odd ones on another task.
Graph layered(int layers) {
  Graph graph;
  Output x = graph.placeholder("x", at::kFloat, {kBatch, 512});
  for (int i = 0; i < layers; ++i) {
    const auto scope = graph.name_scope("layer" + std::to_string(i));
    const auto device = graph.with_device(i % 2 == 0 ? "/task:0" : "/task:1");
    for (int k = 0; k < 3; ++k) x = ops::tanh(x);
  }
  return graph;
}

std::vector<std::string> names_of(const Drawing& drawing) {
  std::vector<std::string> names;
  for (const auto& box : drawing.boxes) names.push_back(box.name);
  return names;
}

TEST(Drawing, ScopesEndAtSlashesAndDots) {
  EXPECT_THAT(scope_ends("encoder.0/addmm"), ElementsAre(7, 9));
  EXPECT_THAT(scope_ends("relu"), IsEmpty());
  EXPECT_THAT(scope_ends("/a/"), IsEmpty());
}

TEST(Drawing, ASmallGraphIsDrawnWhole) {
  const Graph graph = layered(2);
  const Drawing drawing = make_drawing(placed_by_device(graph), {});
  EXPECT_THAT(names_of(drawing), ElementsAre("x", "layer0/tanh", "layer0/tanh_1", "layer0/tanh_2",
                                             "layer1/tanh", "layer1/tanh_1", "layer1/tanh_2"));
  EXPECT_FALSE(drawing.is_collapsed);
  EXPECT_THAT(drawing.lines, SizeIs(6));
  EXPECT_EQ(drawing.lines[3].bytes.to_string(), "N x 2 KiB");
  EXPECT_TRUE(drawing.lines[3].crosses);
  EXPECT_FALSE(drawing.lines[0].crosses) << "x may be anywhere";
}

TEST(Drawing, ScopesBelowTheDepthAreOneBox) {
  const Graph graph = layered(2);
  const Drawing drawing = make_drawing(placed_by_device(graph), {.depth = 0});
  EXPECT_THAT(names_of(drawing), ElementsAre("x", "layer0", "layer1"));
  EXPECT_EQ(drawing.boxes[1].nodes, 3);
  EXPECT_TRUE(drawing.is_collapsed);
  EXPECT_THAT(drawing.lines, SizeIs(2));
}

TEST(Drawing, AScopeOnTwoTasksIsTwoBoxes) {
  Graph graph;
  const auto scope = graph.name_scope("layer");
  Output x = graph.constant(1.0);
  x = ops::tanh(x);
  {
    const auto other = graph.with_device("/task:1");
    x = ops::tanh(ops::tanh(x));
  }
  const Drawing drawing = make_drawing(placed_by_device(graph), {.depth = 0});
  EXPECT_THAT(names_of(drawing), ElementsAre("layer", "layer"));
  EXPECT_THAT(drawing.places, ElementsAre("/task:1", ""));
}

TEST(Drawing, TheDepthIsChosenSoThatItStaysReadable) {
  const Drawing by_scope = make_drawing(placed_by_device(layered(100)), {});
  EXPECT_EQ(by_scope.depth, 0);
  EXPECT_THAT(by_scope.boxes, SizeIs(101));
  EXPECT_FALSE(by_scope.is_folded);
  const Drawing by_number = make_drawing(placed_by_device(layered(300)), {});
  EXPECT_TRUE(by_number.is_folded);
  EXPECT_THAT(names_of(by_number), ElementsAre("x", "layer*", "layer*")) << "one on each task";
}

TEST(Drawing, DerivativesCanBeLeftOut) {
  Graph graph;
  const Output w = graph.variable("w", at::ones({3}));
  minimize(optim::SGD({.lr = 0.1}), ops::sum(ops::tanh(w)));
  const auto names = names_of(make_drawing(placed_by_device(graph), {.without_gradients = true}));
  EXPECT_THAT(names, ElementsAre("w/initial", "w", "w/initialize", "tanh", "sum", "w/update", "train"));
}

TEST(Drawing, UpdatesStayOutOfTheBoxesOfTheirVariables) {
  Graph graph;
  {
    const auto scope = graph.name_scope("layer");
    const Output v = graph.variable("v", at::ones({3}));
    const Output w = graph.variable("w", at::ones({3}));
    minimize(optim::SGD({.lr = 0.1}), ops::sum(ops::mul(v, w)));
  }
  const auto names = names_of(make_drawing(placed_by_device(graph), {.depth = 0}));
  EXPECT_THAT(names, ElementsAre("layer", "gradients", "updates"));
}

TEST(Drawing, TheSourceHasFramesColoursAndBytes) {
  const std::string dot = dot_source(make_drawing(placed_by_device(layered(2)), {}), {});
  EXPECT_THAT(dot, AllOf(HasSubstr("subgraph \"cluster_layer0\""), HasSubstr("N x 2 KiB"),
                         HasSubstr("/task:1"), HasSubstr("shape=hexagon"), Not(HasSubstr("style=dashed"))));
  EXPECT_THAT(dot_source(make_drawing(placed_by_device(layered(2)), {}), 64), HasSubstr("128 KiB"));
}

TEST(Drawing, AnyNameCanBeDrawn) {
  Graph graph;
  const Output x = graph.constant(1.0, at::kFloat, "a<b>&\"c\\\xff");
  const auto after = graph.control_dependencies({x});
  ops::tanh(x);
  const std::string svg = svg_of(dot_source(make_drawing(placed_by_device(graph), {}), {}));
  EXPECT_THAT(
      svg, AllOf(HasSubstr("a&lt;b&gt;&amp;&quot;c\\?"), HasSubstr("</svg>"), HasSubstr("stroke-dasharray")));
}

TEST(Drawing, AGraphWithoutNodesCanBeDrawn) {
  EXPECT_THAT(svg_of(dot_source(make_drawing({}, {}), {})), HasSubstr("0 nodes"));
}

}  // namespace
}  // namespace muster::detail
