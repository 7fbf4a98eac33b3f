#include "muster/collective/native/operation_context.h"

namespace muster::detail {

void OperationContext::give_up(const std::vector<int>& waited_for) const {
  const bool message = called.collective == Collective::kSend || called.collective == Collective::kReceive;
  std::vector<int> blamed = message ? waited_for : peers.absent(number);
  if (blamed.empty()) blamed = waited_for;
  std::string names;
  for (const int rank : blamed) names += (names.empty() ? "" : ", ") + describe(rank);
  error.fail(GroupError::Kind::kDeadline, names + " did not come in time", during());
}

void OperationContext::connection_broke(int rank, const std::string& how) const {
  // Whoever died has closed all its connections, and whoever left says so: a moment later we know which it
  // was.
  if (!error.raised()) peers.wait_gone(rank, Deadline::after(std::chrono::milliseconds(500)));
  error.fail(GroupError::Kind::kPeerLost,
             describe(rank) + (peers.left(rank) ? " has left the group" : " died or was cut off: " + how),
             during());
}

}  // namespace muster::detail
