#include "muster/collective/group_error.h"

#include <cstdlib>

#include "muster/base/error.h"

namespace muster::detail {

bool GroupError::set(Kind kind, const std::string& message) {
  const MutexLock lock(mutex_);
  if (raised_) return false;
  kind_ = kind;
  message_ = message;
  raised_ = true;
  changed_.notify_all();
  return true;
}

bool GroupError::wait_raised(Deadline deadline) const {
  MutexLock lock(mutex_);
  while (!raised_ && !deadline.expired()) changed_.wait_until(lock, deadline.time_point());
  return raised_;
}

void GroupError::check(const std::string& during) const {
  if (!raised()) return;
  const MutexLock lock(mutex_);
  switch (kind_) {
    case Kind::kPeerLost:
      raise<PeerLost>("{}: {}", during, message_);
    case Kind::kDeadline:
      raise<DeadlineExceeded>("{}: {}", during, message_);
    case Kind::kMismatch:
      raise<InvalidArgument>("{}: {}", during, message_);
    case Kind::kAborted:
      raise<Aborted>("{}: {}", during, message_);
  }
}

std::string GroupError::message() const {
  const MutexLock lock(mutex_);
  return message_;
}

GroupError::Kind GroupError::kind() const {
  const MutexLock lock(mutex_);
  return kind_;
}

void GroupError::fail(Kind kind, const std::string& message, const std::string& during) {
  set(kind, message);
  check(during);
  std::abort();  // check() throws
}

}  // namespace muster::detail
