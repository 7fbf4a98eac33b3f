#pragma once

// The inside of UpdatePolicy: what it knows of the workers and of its decision so far, which it shares with
// the rules of the mode (mode_rules.h).

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "muster/ps/policy/update_policy.h"

namespace muster::detail {

struct WorkerState {
  /// kComputing: it has had its answer. It holds a token, unless training is over. kBack: it was away, and has
  /// not asked for a token yet.
  enum class Status { kAbsent, kComputing, kWaiting, kFinishedEpoch, kAway, kBack };
  enum class Request { kEnter, kPush, kFinishEpoch, kResume };

  Status status = Status::kAbsent;
  int incarnation = -1;
  bool expected = true;  ///< it has not come yet, and nothing says that it won't
  bool failed = false;
  Request request = Request::kEnter;  ///< its last
  std::optional<int64_t> token;       ///< the step that it is for
  Answer next_answer;                 ///< what became of its last push, as far as it is known
  std::optional<Answer> answer;       ///< to its last request, when it has been given

  void ask(Request what, Status becomes) {
    request = what;
    status = becomes;
    next_answer = {};
    answer.reset();
  }

  bool living() const { return status != Status::kAbsent; }
  bool active() const { return living() && status != Status::kFinishedEpoch && status != Status::kAway; }
};

/// What the policy and the rules of its mode share.
struct PolicyState {
  PolicyOptions options;
  int64_t step = 0;
  int64_t version = 0;
  int64_t samples = 0;  ///< of all pushes
  /// The samples that workers are told, as the job's position. Synchronous ones all have to know the same for
  /// one step, whenever they are answered: what was pushed until the last step, or the epoch, ended.
  int64_t position = 0;
  int64_t position_step = 0;  ///< the step at whose beginning it was taken
  std::vector<WorkerState> workers;
  std::map<int, UpdatePolicy::WorkerCounts> counts;
  Decision decision;  ///< that is being made

  WorkerState& worker(int index) { return workers[static_cast<size_t>(index)]; }
  const WorkerState& worker(int index) const { return workers[static_cast<size_t>(index)]; }
  int living() const;
  int active() const;
  int expected() const;  ///< those that have not come yet

  /// A gradient of the worker's. Its weight is counted in `unit`s, so that it is 1, and changes no bit, where
  /// all are the same.
  GradientSource source(int worker, const Push& push, double unit) const;

  /// Adds a command, with the version and the step as of now, to the decision.
  Command& add_command(Command::Kind kind, std::vector<GradientSource> sources);

  /// The gradient brings nothing: kDropped or kSkipped.
  void drop(int worker, const Push& push, Answer::Outcome outcome);
};

}  // namespace muster::detail
