#pragma once

// The nodes that are Muster's own and that are called as operators are: print, branches, loops,
// TorchScript modules and queues.

#include "muster/graph/graph_node.h"
#include "muster/runtime/program.h"
#include "muster/runtime/variables.h"

namespace muster::detail {

/// Of a node muster::print, cond, while_loop, script, enqueue, dequeue, queue_size or close_queue. The
/// container, where queues are, outlives it. Throws InvalidArgument for bodies that make no sense, and for a
/// queue that is there with other options.
StepFunction node_function(const GraphNode& node, Container& container, const CompileOptions& options);

}  // namespace muster::detail
