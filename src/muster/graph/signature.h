#pragma once

// What is asked of a graph: what is given, what is to come out, what is to be run besides.
//
// Pure functions.

#include <vector>

#include "muster/graph.h"
#include "muster/graph/graph_node.h"

namespace muster::detail {

struct Signature {
  std::vector<Output> feeds;    ///< given to each run
  std::vector<Output> fetches;  ///< what it returns
  std::vector<Node> targets;    ///< what it runs besides
};

/// Throws InvalidArgument for outputs and nodes that are undefined or not of this graph.
void check_signature(const Signature& signature, const GraphData& graph);

/// The nodes that have to run for it, in the order of their numbers. Throws InvalidArgument for an output
/// that is fed twice, for a placeholder that is needed and not fed, and for a feed whose own computation a
/// derivative needs.
std::vector<GraphNode*> needed_nodes(const Signature& signature);

}  // namespace muster::detail
