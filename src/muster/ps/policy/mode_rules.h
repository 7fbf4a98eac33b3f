#pragma once

// The inside of UpdatePolicy: the rules of the mode of one phase, which say when gradients are applied and
// who may begin. There are two families of rules:
//
//   async_rules   async and ssp: a gradient is applied as it comes
//   sync_rules    sync, local, and ssp with a staleness of 0: gradients are gathered, then averaged
//
// UpdatePolicy (update_policy.cc) speaks with the workers: it takes their requests, keeps who waits, and
// answers.

#include <cstdint>
#include <memory>

#include "muster/ps/policy/policy_state.h"

namespace muster::detail {

/// The mode of the steps `from` <= step < `end`.
struct PhaseSpan {
  Mode mode = Mode::kAsync;
  int64_t from = 0;
  int64_t end = 0;
};

class ModeRules {
 public:
  virtual ~ModeRules() = default;

  /// A gradient is there; its worker waits from now on. Sets what is known of its outcome.
  virtual void receive(int worker, const Push& push) = 0;

  /// A worker is active now: it has entered, or begins another epoch. Or it is not any more.
  virtual void activated(int) {}
  virtual void deactivated(int) {}

  /// Applies what has become complete.
  virtual void settle() {}

  virtual bool may_begin(int worker) const = 0;

  /// Why a worker may not begin.
  virtual UpdatePolicy::Need need(int worker) const = 0;

  /// The worker goes on: what the servers still need of its gradients must be taken now.
  virtual void release(int) {}

  /// How many gradients of a worker's are here for an update that needs more of them.
  virtual int64_t gathered(int) const { return 0; }

  /// How many gradients make an update when there are so many workers for it.
  virtual int needed(int) const { return 1; }
};

/// They keep a reference to the state.
std::unique_ptr<ModeRules> async_rules(PolicyState& state, const PhaseSpan& span);
std::unique_ptr<ModeRules> sync_rules(PolicyState& state, const PhaseSpan& span);

}  // namespace muster::detail
