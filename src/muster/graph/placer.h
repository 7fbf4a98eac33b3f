#pragma once

// Which task runs which node. A node's device may name its task, a part of its name, or nothing: it goes to
// the default task where that one fits, and to the first that fits otherwise. A node that belongs to another
// one (what changes a variable, or reads it, and the derivative of a node) is where that one is, whatever
// device it was made with. A node that was asked to be with another one (Graph::colocate_with) is there too,
// and a device of its own must fit that task.
//
//   GraphPlacement placement = place(nodes, {.tasks = tasks, .default_task = 0});
//   placement.task(node);
//
// Pure functions. Throws InvalidArgument where no task fits: it names the node, its device and the tasks, or
// the other node and its device.

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "muster/base/task_name.h"
#include "muster/graph/graph_node.h"

namespace muster::detail {

struct PlacementOptions {
  std::vector<TaskName> tasks;  ///< of the cluster
  size_t default_task = 0;      ///< for nodes that say nothing: one of them
  bool soft = false;            ///< a device that nobody has is left out of account
};

class GraphPlacement {
 public:
  GraphPlacement(std::vector<TaskName> tasks, std::vector<int32_t> of_node)
      : tasks_(std::move(tasks)), of_node_(std::move(of_node)) {}

  const std::vector<TaskName>& tasks() const { return tasks_; }
  size_t task(const GraphNode& node) const {
    return static_cast<size_t>(of_node_[static_cast<size_t>(node.id)]);
  }
  /// "/job:worker/replica:0/task:1/device:cpu:0"
  std::string device(const GraphNode& node) const;

 private:
  std::vector<TaskName> tasks_;
  std::vector<int32_t> of_node_;  // by their numbers; -1 for those that were not placed
};

/// Finds the node whose device says where another one is: the node itself, or the last of those that it
/// belongs to, or was asked to be with, one after the other. What was found is kept, so that the nodes of a
/// long chain cost no more than its length together.
class PlacingNodes {
 public:
  const GraphNode& of(const GraphNode& node);

 private:
  std::unordered_map<const GraphNode*, const GraphNode*> found_;
};

GraphPlacement place(const std::vector<GraphNode*>& nodes, const PlacementOptions& options);

}  // namespace muster::detail
