#pragma once

// Synchronous between-graph replication: each worker is a client with the same graph (monitored_session.h),
// and the gradients of several are averaged and applied as one update.
//
//   const muster::SyncReplicas sync{.total_num_replicas = 3, .replica = server.task()};
//   const muster::optim::SGD optimizer({.lr = 0.1});
//   muster::Output step = muster::minimize_synchronously(graph, optimizer, loss, sync);
//   muster::MonitoredSession session(server, graph, {.step = step, .last_step = 1000});
//   while (!session.should_stop()) session.run({loss}, next_batch());
//
// The rules are those of --strategy ps-sync (docs/parameter-server.md). A replica needs a token for each
// gradient that it computes. `replicas_to_aggregate` gradients that were computed for the current step make
// an update; the global step grows by one, and new tokens let all replicas go on. A gradient for an older
// step is dropped: with fewer gradients than replicas the slowest are backup workers. A replica whose session
// has ended is not waited for any more: where fewer are left than gradients are needed, as many as these are
// enough. One that comes back takes part again.
//
// A run of the step computes a gradient, hands it in, and then waits for the token of the next run: what
// reads variables is in the graph already, so that it can't be made to wait at the beginning. Whoever hands
// in the last gradient that an update needs carries it out in its own run, on all tasks that have variables.
// Gradients are added up in the order of the replicas, so that it makes no difference who was first.
//
// A MonitoredSession takes the first token before the first run. Without one, and after a run that failed
// while it waited, a session has no token: then the gradient of its next run is not used, and the run waits
// for a token. The same is so where somebody died who was carrying out an update: another's run ends without
// a token, and the update is carried out by its next.

#include <source_location>

#include "muster/graph.h"

namespace muster {

struct SyncReplicas {
  int replicas_to_aggregate = 0;  ///< How many gradients make an update; 0: one of each replica.
  int total_num_replicas = 1;     ///< How many clients there are, each with a number of its own.
  int replica = 0;                ///< The number of this one: that of its worker task.
};

/// Adds the nodes that compute the gradients of a loss, for all trainable variables that it depends on, and
/// apply them together with those of the other replicas. The output is the global step, as count_step() gives
/// it; `lr`, a scalar, is the learning rate of a step, where it is given. One run at a time may run it in a
/// session; the run blocks until the replica has its next token. Throws InvalidArgument for numbers that make
/// no sense, for a loss without trainable variables, and for variables that are neither of float32 nor of
/// float64. A run throws InvalidArgument, with the variable, for a gradient that is not finite, which is not
/// used.
Output minimize_synchronously(Graph& graph, const optim::Optimizer& optimizer, const Output& loss,
                              const SyncReplicas& sync, const Output& lr = {},
                              std::source_location where = std::source_location::current());

}  // namespace muster
