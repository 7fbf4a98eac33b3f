#pragma once

// A branch of cond(), or the condition or body of while_loop(): a small graph that a node holds as one of its
// arguments, in the form of graph.proto.
//
// Pure functions.

#include <string>
#include <vector>

#include "muster/graph.h"
#include "muster/graph/graph_node.h"

namespace muster::detail {

struct GraphBody {
  Graph graph;
  std::vector<Output> inputs;  ///< placeholders
  std::vector<Output> results;

  std::string to_text() const;

  /// What to_text() made. Throws InvalidArgument for anything else, and for bodies inside of bodies that are
  /// more than kDeepestBody deep; `depth` says how deep this one is.
  static GraphBody parse(const std::string& text, int depth = 1);
};

constexpr int kDeepestBody = 32;

/// Says what is known of the results of a node muster::cond or muster::while_loop, from its bodies. Throws
/// InvalidArgument where they do not fit the node, or each other; `subject` begins the message.
void set_results_of_bodies(GraphNode& node, const std::string& subject, int depth = 1);

}  // namespace muster::detail
