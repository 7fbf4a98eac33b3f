#include "muster/collective/failure.h"

#include <cstdlib>

#include "muster/base/error.h"

namespace muster {

bool Failure::set(Kind kind, const std::string& message) {
  const MutexLock lock(mutex_);
  if (raised_) return false;
  kind_ = kind;
  message_ = message;
  raised_ = true;
  return true;
}

void Failure::check(const std::string& during) const {
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

std::string Failure::message() const {
  const MutexLock lock(mutex_);
  return message_;
}

void Failure::fail(Kind kind, const std::string& message, const std::string& during) {
  set(kind, message);
  check(during);
  std::abort();  // check() throws
}

}  // namespace muster
