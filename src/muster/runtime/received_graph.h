#pragma once

// Graphs and signatures as messages between clients, masters and workers. Large tensors go beside the
// message, over a data link.
//
// Pure functions, but for those that send and receive, which block.

#include <cstdint>

#include "muster/graph.h"
#include "muster/graph/graph.pb.h"
#include "muster/graph/graph_proto.h"
#include "muster/graph/signature.h"
#include "muster/runtime/rendezvous.h"
#include "muster/runtime/runtime.pb.h"
#include "muster/runtime/step_link.h"

namespace muster::detail {

/// Sends a graph's large tensors under a number that its message carries.
void send_tensors(StepLink& link, const SavedGraph& graph, uint64_t transfer);

/// The graph, when its large tensors are there. Throws InvalidArgument for one that makes no sense, DataLoss
/// for tensors of other sizes, DeadlineExceeded.
Graph receive_graph(const graph::GraphProto& proto, uint64_t transfer, Rendezvous& rendezvous,
                    Deadline deadline);

runtime::Signature to_proto(const Signature& signature);

/// Throws InvalidArgument for what the graph does not have.
Signature signature_of(const runtime::Signature& proto, const Graph& graph);

}  // namespace muster::detail
