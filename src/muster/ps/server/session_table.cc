#include "muster/ps/server/session_table.h"

#include <algorithm>

#include "muster/base/error.h"

namespace muster::detail {

void SessionTable::add(const std::shared_ptr<Session>& session) {
  MUSTER_CHECK(sessions_.try_emplace(session->worker, session).second);
}

std::shared_ptr<Session> SessionTable::remove(int worker) {
  const auto found = sessions_.find(worker);
  if (found == sessions_.end()) return nullptr;
  auto session = std::move(found->second);
  sessions_.erase(found);
  if (!session->data.empty()) orphaned_.push_back(session);
  return session;
}

Session* SessionTable::find(int worker) const {
  const auto found = sessions_.find(worker);
  return found == sessions_.end() ? nullptr : found->second.get();
}

Session* SessionTable::holder_of(const GradientSource& source) const {
  const auto has = [&](const Session& session) {
    return session.worker == source.worker && session.incarnation == source.incarnation &&
           session.data.contains(source.sequence);
  };
  Session* const session = find(source.worker);
  if (session != nullptr && has(*session)) return session;
  const auto orphan =
      std::find_if(orphaned_.begin(), orphaned_.end(), [&](const auto& entry) { return has(*entry); });
  return orphan == orphaned_.end() ? nullptr : orphan->get();
}

void SessionTable::release(const Command& command) {
  for (const auto& source : command.sources) {
    Session* session = holder_of(source);
    if (session == nullptr) continue;
    session->data.erase(source.sequence);
    session->slot->consumed.exchange(source.sequence);
    wake(session->slot->doorbell);
  }
  // What an earlier incarnation left is not asked for once a later one is.
  std::erase_if(orphaned_, [&](const auto& orphan) {
    return orphan->data.empty() ||
           std::any_of(command.sources.begin(), command.sources.end(), [&](const GradientSource& source) {
             return source.worker == orphan->worker && source.incarnation > orphan->incarnation;
           });
  });
}

}  // namespace muster::detail
