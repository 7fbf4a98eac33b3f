#pragma once

// What is drawn of a graph: a box for each node, or for all nodes of a scope on one place; and the lines
// between them. A scope is a part of a name that ends at a slash or a dot: `encoder.0/addmm` is in the scope
// encoder.0, which is in encoder.
//
//   Drawing drawing = make_drawing(nodes, {.depth = 1});
//   dot_source(drawing);            // drawing_dot.h: for Graphviz
//
// Pure functions.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/value_bytes.h"

#include "muster/graph/graph_node.h"

namespace muster::detail {

/// A node, and the place that gives it its colour: a device or a task; empty: none.
struct PlacedNode {
  const GraphNode* node = nullptr;
  std::string place;
};

struct DrawingOptions {
  std::optional<size_t>
      depth;  ///< levels of scopes whose nodes are drawn; not given: as many as stay readable
  size_t readable_boxes = 200;          ///< that is to say, at most so many boxes
  bool without_gradients = false;       ///< derivatives are left out
  std::string no_place = "any device";  ///< what nodes without a place are called
};

enum class BoxKind { kOperator, kVariable, kPlaceholder, kConstant, kSeveral };

struct DrawnBox {
  BoxKind kind = BoxKind::kOperator;
  std::string name;    ///< of the node, or of the scope
  size_t scope = 0;    ///< how much of the name, from its beginning, is the scope that it is drawn in
  std::string detail;  ///< operator and shape
  size_t place = 0;    ///< of the drawing's places
  size_t nodes = 1;    ///< that it stands for
};

struct DrawnLine {
  size_t from = 0;  ///< of the boxes
  size_t to = 0;
  bool is_control = false;
  bool crosses = false;  ///< from place to place
  ValueBytes bytes;      ///< of the values that go along it, each once
};

struct Drawing {
  std::vector<DrawnBox> boxes;
  std::vector<DrawnLine> lines;
  std::vector<std::string> places;  ///< in the order of their names; that without one is the last
  std::string no_place;             ///< what the place is called whose name is empty
  size_t nodes = 0;                 ///< that were to be drawn
  size_t depth = 0;                 ///< that was chosen
  bool is_collapsed = false;        ///< some boxes stand for several nodes
  bool is_folded = false;           ///< also those whose names differ in nothing but numbers

  /// Whether any node has a place.
  bool shows_places() const { return places.size() > 1 || (places.size() == 1 && !places.front().empty()); }
};

/// The nodes are in the order of their numbers.
Drawing make_drawing(const std::vector<PlacedNode>& nodes, const DrawingOptions& options);

/// Where scopes end in a name: the places of its slashes and dots.
std::vector<size_t> scope_ends(const std::string& name);

}  // namespace muster::detail
