#pragma once

// The inside of UpdatePolicy: what it knows of the workers, and the rules of one phase, which say when
// gradients are applied and who may begin. There are two families of rules:
//
//   arrivals   async and ssp: a gradient is applied as it comes
//   rounds     sync, local, and ssp with a staleness of 0: gradients are gathered, then averaged
//
// UpdatePolicy (update_policy.cc) speaks with the workers: it takes their requests, keeps who waits, and
// answers.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "muster/ps/update_policy.h"

namespace muster {

struct WorkerState {
  /// kComputing: it has had its answer. It holds a token, unless training is over.
  enum class Status { kAbsent, kComputing, kWaiting, kResting };
  enum class Request { kJoin, kPush, kRest };

  Status status = Status::kAbsent;
  int incarnation = -1;
  bool expected = true;  ///< it has not come yet, and nothing says that it won't
  bool lost = false;
  Request request = Request::kJoin;  ///< its last
  std::optional<int64_t> token;      ///< the step that it is for
  std::optional<uint64_t> sequence;  ///< of its last push
  Answer fate;                       ///< of its last push, as far as it is known; for the next answer
  std::optional<Answer> answer;      ///< to its last request, when it has been given

  void ask(Request what, Status becomes) {
    request = what;
    status = becomes;
    fate = {};
    answer.reset();
  }

  bool living() const { return status != Status::kAbsent; }
  bool active() const { return living() && status != Status::kResting; }
};

/// What the policy and the rules of its phase share.
struct PolicyState {
  PolicyOptions options;
  int64_t step = 0;
  int64_t version = 0;
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
  Source source(int worker, const Push& push, double unit) const;

  /// An order as of now, written down as the next of the decision.
  Order& order(Order::Kind kind, std::vector<Source> sources);

  /// The gradient brings nothing: kDropped or kSkipped.
  void drop(int worker, const Push& push, Answer::Verdict verdict);
};

/// The mode of the steps `from` <= step < `end`.
struct PhaseSpan {
  Mode mode = Mode::kAsync;
  int64_t from = 0;
  int64_t end = 0;
};

class PhaseRules {
 public:
  virtual ~PhaseRules() = default;

  /// A gradient is there; its worker waits from now on. Sets the fate of the push.
  virtual void receive(int worker, const Push& push) = 0;

  /// A worker is active now: it joined or begins again after a rest. Or it is not any more.
  virtual void activated(int) {}
  virtual void deactivated(int) {}

  /// Applies what has become complete.
  virtual void settle() {}

  virtual bool may_begin(int worker) const = 0;

  /// The worker goes on: what the servers still need of its gradients must be taken now.
  virtual void release(int) {}

  /// How many gradients make an update when there are so many workers for it.
  virtual int needed(int) const { return 1; }
};

/// They keep a reference to the state.
std::unique_ptr<PhaseRules> arrivals(PolicyState& state, const PhaseSpan& span);
std::unique_ptr<PhaseRules> rounds(PolicyState& state, const PhaseSpan& span);

}  // namespace muster
