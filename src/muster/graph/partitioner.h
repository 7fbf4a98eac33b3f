#pragma once

// Cuts what a signature needs of a placed graph into a graph for each task. A value that is used on another
// task than its own is sent there once (muster::send, muster::receive, with a key that no other pair of the
// cut has), as is the word that a node has run, for nodes elsewhere that wait for it. What is fed goes to all
// tasks that use it.
//
// Pure functions.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "muster/graph/graph_node.h"
#include "muster/graph/placer.h"
#include "muster/graph/signature.h"

namespace muster::detail {

/// The part of a graph that a task runs. Feeds, fetches and targets are of the part's own graph.
struct Part {
  size_t task = 0;  ///< of the placement's tasks
  Graph graph;
  Signature signature;
  std::vector<size_t> feeds;    ///< which of the whole signature's feeds the part's are
  std::vector<size_t> fetches;  ///< likewise of its fetches
  std::vector<size_t> peers;    ///< tasks that it sends to
};

/// A value that goes from a task to another.
struct Edge {
  Output output;  ///< of the whole graph
  size_t from = 0;
  size_t to = 0;
  bool is_control = false;  ///< nothing but the word that the node has run
};

struct Partition {
  std::vector<Part> parts;  ///< of the tasks that have anything to do, in their order
  std::vector<Edge> edges;
};

/// Throws InvalidArgument for a graph with nodes that only partition() makes.
void check_is_whole(const GraphData& graph);

/// `nodes` are those that the signature needs.
Partition partition(const Signature& signature, const std::vector<GraphNode*>& nodes,
                    const GraphPlacement& placement);

}  // namespace muster::detail
