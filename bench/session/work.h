#pragma once

// What Muster does when `muster bench session` measures it: a graph and a session for each case
// (bench/session/subjects.h). Timed work answers as peers/timed_harness.h says, training as
// peers/train_harness.h does.

#include <memory>
#include <string>

#include "bench/peers/timed_harness.h"
#include "bench/peers/train_harness.h"
#include "muster/server.h"

namespace muster::detail::bench::session {

/// 100 operators on four floats, compiled, in this process; peers/session_loop.cc has the same in a loop.
std::unique_ptr<TimedWork> make_operators();

/// Nodes that do nothing in this process: "1024x16 control" is 1024 wide and 16 deep.
std::unique_ptr<TimedWork> make_empty_nodes(const std::string& shape);

/// A step in which no task of the cluster does anything.
std::unique_ptr<TimedWork> make_empty_step(const Server& server);

/// A tensor that goes to task 1, which adds one to it, and comes back.
std::unique_ptr<TimedWork> make_transfer(const Server& server, int64_t bytes);

/// All from an empty graph to the first result.
std::unique_ptr<TimedWork> make_large_graph(const Server& server, int64_t nodes);

/// A model of bench/train/models.h, in this process.
std::unique_ptr<TrainWorker> make_local_training(const std::string& model, int64_t batch);

/// Two equal stages: "1f1b" and "zero-bubble" on tasks 0 and 1, "one-task" both on task 0.
std::unique_ptr<TrainWorker> make_pipeline(const Server& server, const std::string& schedule, int64_t batch);

/// A worker that averages its gradients with the others' (muster/sync_replicas.h).
std::unique_ptr<TrainWorker> make_replica(const Server& server, const std::string& model, int64_t batch);

}  // namespace muster::detail::bench::session
