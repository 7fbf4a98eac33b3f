#pragma once

// Graphs between clients, masters and workers: they go over data links, so that nobody who has not proved
// that he knows the secret can make a server read much. Signatures are messages.
//
// Pure functions, but for those that send and receive, which block.

#include <cstdint>

#include "muster/graph.h"
#include "muster/graph/graph_proto.h"
#include "muster/graph/signature.h"
#include "muster/runtime/rendezvous.h"
#include "muster/runtime/runtime.pb.h"
#include "muster/runtime/step_link.h"

namespace muster::detail {

/// Sends a graph under a number that a request names. `check` is called now and then and may throw. Throws
/// InvalidArgument for one that is too large, PeerLost.
void send_graph(StepLink& link, const SavedGraph& graph, uint64_t transfer, const StepLink::Check& check);

/// The graph, when all of it is there. Throws InvalidArgument for one that makes no sense, DataLoss for
/// tensors of other sizes, DeadlineExceeded, and what the transfer was aborted with.
Graph receive_graph(uint64_t transfer, Rendezvous& rendezvous, Deadline deadline);

runtime::Signature to_proto(const Signature& signature);

/// Throws InvalidArgument for what the graph does not have.
Signature signature_of(const runtime::Signature& proto, const Graph& graph);

}  // namespace muster::detail
