#pragma once

// What runs a graph (graph.h).
//
//   muster::Session session("local", graph);
//   session.run({}, {}, {graph.initializer()});
//   torch::Tensor y_value = session.run({y}, {{x, images}}).front();
//
// "local" runs in this process, without any network and whatever devices nodes have, and variables live in
// the session. The target() of a
// Server (server.h), "grpc://host:port", runs the graph on that server's cluster, each node on the task that
// its device names, and those without one on that server; variables live on the tasks that have them, and
// are shared by all sessions of the cluster unless Options say otherwise. Making such a session waits for all
// tasks of the cluster, and says so every few seconds.
//
// Thread-safe, also while others run; the graph must not grow meanwhile. A run blocks until it is done. It
// throws InvalidArgument for fetches, feeds and targets that the graph does not have, for feeds of another
// type or shape than their placeholder, and for an operator that fails, with the node and where it was made;
// PeerLost for a task that is lost in the run, with its name. The next run works when the task is back; what
// variables it had is lost.

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/graph.h"
#include "muster/timeline.h"

namespace muster {

/// A part of a graph that is compiled once and run often. Copies stand for the same one. It must not outlive
/// its session.
class Callable {
 public:
  /// The values of the feeds, in the order in which they were named; the fetches, likewise. A timeline gets
  /// what was done when.
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& feeds = {},
                                     Timeline* timeline = nullptr) const;

  /// For Muster's own rooms.
  struct State;
  explicit Callable(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

class Session {
 public:
  /// What a run is given: outputs, most often placeholders, and their values.
  using Feeds = std::vector<std::pair<Output, at::Tensor>>;

  struct Options {
    bool fold_constants = true;        ///< Compute what depends on constants alone once.
    bool share_subexpressions = true;  ///< Compute what is written twice once.
    bool join_gradients = true;        ///< Run the derivatives of neighbours as one pass of autograd.

    /// Print where each node is: "name: (Op): /job:worker/replica:0/task:1/device:cpu:0".
    bool log_device_placement = false;
    bool soft_placement = false;  ///< Leave devices that the cluster does not have out of account.

    // Of sessions on a cluster.
    std::string container;           ///< Where variables are: shared by the sessions that name the same.
    bool private_variables = false;  ///< Variables of this session's own, which end with it.
    std::string secret;              ///< The cluster's; empty: MUSTER_SECRET.

    /// How long the constructor waits for all tasks of the cluster; then it throws DeadlineExceeded. 0: as long
    /// as it takes, or of a MonitoredSession its patience. After 3 s it says whom it waits for.
    std::chrono::milliseconds wait_for_tasks{0};

    /// How long a run may take, with what has to be made ready for it; then it throws DeadlineExceeded, with
    /// the tasks that did not end it. 0: what the job's --collective-timeout says, where that is not its
    /// default, and any time otherwise.
    std::chrono::milliseconds timeout{0};
  };

  /// The graph outlives the session. Throws InvalidArgument for a target that is none, Refused where the
  /// secret is another one, PeerLost where no server is, DeadlineExceeded as wait_for_tasks says.
  Session(const std::string& target, const Graph& graph, Options options);
  Session(const std::string& target, const Graph& graph) : Session(target, graph, Options()) {}
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// Computes the fetches and runs the targets, with what they need and nothing else. Nobody but the caller
  /// has the results. What the same outputs and nodes were asked for before is not compiled again. A timeline
  /// gets what was done when, in place of what it had.
  std::vector<at::Tensor> run(const std::vector<Output>& fetches, const Feeds& feeds = {},
                              const std::vector<Node>& targets = {}, Timeline* timeline = nullptr);

  /// The same, compiled once: calling it costs little more than the operators themselves.
  Callable make_callable(const std::vector<Output>& feeds, const std::vector<Output>& fetches,
                         const std::vector<Node>& targets = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace muster
