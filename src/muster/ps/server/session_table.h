#pragma once

// The sessions of a server's workers, and the gradients that they have pushed. A session whose worker is gone
// while its gradients are still needed is orphaned: it is kept until they have been used.
//
// It belongs to the one thread that works on the server's store. Nothing here blocks.

#include <map>
#include <memory>
#include <vector>

#include "muster/ps/policy/update_policy.h"
#include "muster/ps/server/session.h"

namespace muster::detail {

class SessionTable {
 public:
  const std::map<int, std::shared_ptr<Session>>& all() const { return sessions_; }

  /// Its worker must have none.
  void add(const std::shared_ptr<Session>& session);

  /// Gives the session, if there was one. What its worker pushed before still counts.
  std::shared_ptr<Session> remove(int worker);

  Session* find(int worker) const;

  /// The session that has these gradients, be its worker still there or not; nullptr when nobody has.
  Session* holder_of(const GradientSource& source) const;

  /// Gradients of a command have been used: their memory is the worker's again.
  void release(const Command& command);

 private:
  std::map<int, std::shared_ptr<Session>> sessions_;
  std::vector<std::shared_ptr<Session>> orphaned_;
};

}  // namespace muster::detail
