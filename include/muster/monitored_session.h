#pragma once

// A session for training on a cluster where each worker is a client of its own (between-graph replication):
// the chief gives the variables their values, the others wait for it; a task that was started again is waited
// for; when a number of steps was taken by all together, training ends, and the parameter servers with it.
//
//   muster::Server server = muster::Server::of_environment();
//   muster::Graph graph;
//   muster::Output loss = build(graph);
//   muster::Output step = muster::count_step(graph, muster::minimize(muster::optim::SGD({.lr = 0.1}), loss));
//   muster::MonitoredSession session(server, graph, {.step = step, .last_step = 1000});
//   while (!session.should_stop()) session.run({loss}, next_batch());
//
// Of one thread at a time. The constructor, run() and evaluate() block; they throw what Session does, but for
// a task that is lost: that is waited for, as often as it is, until Options::patience has passed since it
// was lost first, and the run made once more. Variables that were lost with a task are restored
// (Options::restore) or, with a warning that names them, initialised anew.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "muster/graph.h"
#include "muster/server.h"
#include "muster/session.h"

namespace muster {

/// The variable that counts the steps of all workers, which is made where the graph has none: "global_step".
Output global_step(Graph& graph, std::source_location where = std::source_location::current());

/// Runs after `train`, and adds one to the global step; its output is the sum.
Output count_step(Graph& graph, const Node& train,
                  std::source_location where = std::source_location::current());

/// What is called beside the runs. A function that is empty is not called.
struct SessionHook {
  std::function<void(Session&)> begin;  ///< When variables have values; again after a task was lost.
  /// Before a run of the step, with the number of the last one: what the run is to compute for the hook.
  std::function<std::vector<Output>(int64_t step)> before_run;
  /// Before a run of the step, likewise: whether it is to be noted what is done when. It goes to `timeline`.
  std::function<bool(int64_t step)> wants_timeline;
  /// After a run of the step that was noted, with its number.
  std::function<void(int64_t step, const Timeline&)> timeline;
  /// After a run of the step, with its number and what it gave: the fetches, then what the hook asked for.
  /// Where it meets the loss of a task, that is waited for, and training goes on.
  std::function<void(int64_t step, const std::vector<at::Tensor>& results)> after_run;
  std::function<void(Session&, int64_t step)> end;  ///< At the end of training.
};

/// How often a hook does its work: when so many steps were taken since the last time, or so much time has
/// passed, whichever is first. 0 is never.
struct Every {
  int64_t steps = 0;
  std::chrono::milliseconds time{0};
};

/// Logs values with the step and how many steps a second there were since the last line, by all workers
/// together: "step 300: loss 0.3124, rate 0.05 (812.3 steps/s)". Of a value with many elements the first few
/// are shown. Throws InvalidArgument where `every` is never.
SessionHook log_values(std::vector<std::pair<std::string, Output>> values, Every every = {.steps = 100});

using ValuesByName = std::map<std::string, at::Tensor>;

/// Gives a function the values of all the graph's variables, but for Muster's own and what the optimizer
/// remembers, every so often and at the end: for Options::chief_hooks, beside Options::restore. They are read
/// in one run, while others may train. What the function throws ends training. The graph outlives the hook.
/// Throws InvalidArgument where `every` is never.
SessionHook save_variables(const Graph& graph, std::function<void(int64_t step, const ValuesByName&)> save,
                           Every every = {.time = std::chrono::minutes(10)});

/// Writes, every so often, what all tasks did in a run of the step and when to FOLDER/timeline-STEP.json
/// (Timeline::save). The folder is made where it is not there. What can't be written is a warning. Throws
/// InvalidArgument where `every` is never.
SessionHook save_timelines(std::string folder, Every every);

class MonitoredSession {
 public:
  struct Options {
    Output step;            ///< What count_step() or minimize_synchronously() gave: each run() runs it.
    int64_t last_step = 0;  ///< Training ends when the global step has reached it; 0: when you say so.
    std::vector<SessionHook> hooks;
    std::vector<SessionHook> chief_hooks;  ///< Of the chief alone.

    /// The values of a checkpoint, for variables by their names, as save_variables() has them; nothing where
    /// there is none. What the optimizer remembers of them (momentum and the like) begins anew. Called on the
    /// chief, when variables have no values, and again where some have none afterwards: a task may have been
    /// lost again meanwhile.
    std::function<std::optional<ValuesByName>()> restore;

    /// With tasks that have not come yet, with one that is lost, and with workers that have not ended when the
    /// chief has.
    std::chrono::milliseconds patience{std::chrono::minutes(10)};
    bool stop_servers = true;  ///< The chief stops the tasks of the job "ps" when all workers have ended.
    Session::Options session;
  };

  /// The chief is task 0 of the job "worker". The graph must have all its nodes, and outlives this; the
  /// session adds a few of its own. Blocks until all tasks are there and all variables have values. Throws
  /// InvalidArgument also for a variable whose device names no job: each worker would have its own.
  MonitoredSession(const Server& server, Graph& graph, const Options& options);
  /// Ends the session as close() does, and drops what that throws.
  ~MonitoredSession();

  bool is_chief() const;
  bool should_stop() const;  ///< The last step was taken, or stop() was called.
  int64_t step() const;      ///< The global step, as of the last run here.
  void stop();               ///< Ends training here.

  /// Runs the step and the fetches.
  std::vector<at::Tensor> run(const std::vector<Output>& fetches = {}, const Session::Feeds& feeds = {});

  /// Runs the fetches without a step, as for evaluating.
  std::vector<at::Tensor> evaluate(const std::vector<Output>& fetches, const Session::Feeds& feeds = {});

  /// Tells the others that this worker has ended; the chief waits for those that are there, and stops the
  /// servers. Throws what a hook throws, or that a task is lost, after all that.
  void close();

  /// What runs the graph, without any patience.
  Session& session();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace muster
