#pragma once

// The nodes of synchronous replication (muster/sync_replicas.h), as what an executor runs: they go to the
// coordinator and the accumulators of their task's container.

#include <cstdint>

#include "muster/graph.h"
#include "muster/graph/graph_node.h"
#include "muster/runtime/program.h"
#include "muster/runtime/variables.h"

namespace muster::detail {

/// Of a node muster::accumulate, push, carry_out or next_token, for a session. The container outlives it.
/// Throws InvalidArgument for numbers of replicas that make no sense.
StepFunction replica_function(const GraphNode& node, Container& container, uint64_t session);

/// The node that takes the first token of a replica whose step this is; an undefined one for any other step.
Node node_that_enters(const Output& step);

}  // namespace muster::detail
