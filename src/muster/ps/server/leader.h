#pragma once

// What the leader of a model's servers does beside serving its own shard: it decides, by the UpdatePolicy,
// what becomes of gradients and who may compute, and tells the followers.
//
// One thread uses it. take() and whatever decides block while commands go out to followers, call `check` of
// the followers' options now and then, and throw what that throws and DataLoss for a follower that is gone.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "muster/base/wait_registry.h"
#include "muster/ps/policy/update_policy.h"
#include "muster/ps/server/followers.h"
#include "muster/ps/session_slot.h"

namespace muster::detail {

class Leader {
 public:
  struct Options {
    PolicyOptions policy;
    Followers::Options followers;
    WaitRegistry* waits = nullptr;  ///< where it says whom workers wait for; outlives this
    std::function<std::string(int worker)> name_of;
  };

  /// Throws InvalidArgument for a policy that can't work.
  explicit Leader(Options options);
  ~Leader();
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  Followers& followers() { return followers_; }

  /// What a worker asks for that the policy decides on: kEnter, kPush, kFinishEpoch, kAway, kBack, kResume,
  /// kLeave. Throws InvalidArgument for what makes no sense.
  Decision take(int worker, int incarnation, const Request& request);

  /// There are parameters: those who want to enter may.
  Decision open();

  /// A worker died, or is not heard any more; also one that never entered: the others would wait for it.
  Decision fail(int worker);

  int64_t step() const { return policy_.step(); }
  size_t entered() const { return entered_.size(); }
  std::string report() const { return policy_.report(); }

  /// Tells the wait registry whom those wait for who have no answer.
  void report_waits();

 private:
  struct Waiting {
    int worker = 0;
    int incarnation = 0;
  };

  Decision admit();
  Decision told(Decision decision);

  const Options options_;
  UpdatePolicy policy_;
  Followers followers_;
  bool is_open_ = false;
  std::set<int> entered_;
  std::vector<Waiting> waiting_to_enter_;
  uint64_t looks_ = 0;  // how often it was said whom workers wait for
};

}  // namespace muster::detail
