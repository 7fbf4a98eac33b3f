#include "muster/ps/server/event_queue.h"

#include <utility>

namespace muster::detail {

template <typename Change>
void EventQueue::change(const Change& change) {
  {
    const MutexLock lock(mutex_);
    change(events_, error_);
    count_.fetch_add(1);
  }
  wake(doorbell_);
}

void EventQueue::put(std::shared_ptr<Session> session) {
  change([&](Events& events, auto&) { events.new_sessions.push_back(std::move(session)); });
}

void EventQueue::put(Failure failure) {
  change([&](Events& events, auto&) { events.failures.push_back(failure); });
}

void EventQueue::put(Command command) {
  change([&](Events& events, auto&) { events.commands.push_back(std::move(command)); });
}

void EventQueue::put(std::exception_ptr error) {
  change([&](Events&, std::exception_ptr& kept) { kept = std::move(error); });
}

EventQueue::Events EventQueue::take() {
  const MutexLock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  count_.store(0);
  return std::exchange(events_, {});
}

std::vector<std::shared_ptr<Session>> EventQueue::new_sessions() const {
  const MutexLock lock(mutex_);
  return events_.new_sessions;
}

}  // namespace muster::detail
