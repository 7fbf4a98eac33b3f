#pragma once

// What a master would make of a graph on a cluster: which task runs which node, and what goes from task to
// task. It is worked out by the master's own functions (room graph), without a server.
//
//   PlacedGraph placed(graph, {.cluster = "ps=h1:2222;worker=h2:2222", .fetches = {"loss"}});
//   fmt::print("{}", placed.to_text({}));
//
// All placeholders count as fed. It refers to the graph. Not thread-safe, as Graph; nothing blocks. Throws
// InvalidArgument for names that the graph or the cluster does not have, and as the placer does.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/value_bytes.h"

#include "muster/graph.h"
#include "muster/graph/partitioner.h"
#include "muster/graph/placer.h"
#include "muster/graph/signature.h"

namespace muster::detail {

struct PlaceRequest {
  std::string cluster;               ///< as ClusterSpec::parse() takes it
  std::vector<std::string> fetches;  ///< "loss" or "loss:0"
  std::vector<std::string> targets;  ///< names of nodes; all nodes are placed where neither is given
  std::string session_task;          ///< whose master it is: "worker/0"; empty: the first task
  bool soft_placement = false;
};

class PlacedGraph {
 public:
  /// What a task has.
  struct Task {
    size_t nodes = 0;
    ValueBytes variables;
    ValueBytes constants;
  };

  /// A value, or the word that a node has run, that a task sends to another.
  struct Crossing {
    std::string name;  ///< "w:0"; of a word that a node has run, "^train"
    ValueBytes bytes;
  };

  /// All that a task sends to another one, the largest first.
  struct Route {
    size_t from = 0;
    size_t to = 0;
    std::vector<Crossing> crossings;
    ValueBytes bytes;
  };

  PlacedGraph(const Graph& graph, const PlaceRequest& request);

  const std::vector<TaskName>& tasks() const { return placement_.tasks(); }
  const std::vector<GraphNode*>& nodes() const { return nodes_; }  ///< That run, in their order.
  size_t task(const GraphNode& node) const { return placement_.task(node); }

  /// The placeholders that are fed, and the tasks that they are fed to.
  const std::vector<std::pair<Output, std::vector<size_t>>>& feeds() const { return feeds_; }

  std::vector<Task> figures() const;  ///< By task.
  std::vector<Route> routes() const;  ///< The largest first.

  /// Sizes are those for a batch, where it is given.
  std::string to_text(std::optional<int64_t> batch) const;
  std::string to_json(std::optional<int64_t> batch) const;

 private:
  Signature signature_;
  std::vector<GraphNode*> nodes_;
  GraphPlacement placement_;
  Partition cut_;
  std::vector<std::pair<Output, std::vector<size_t>>> feeds_;
};

}  // namespace muster::detail
