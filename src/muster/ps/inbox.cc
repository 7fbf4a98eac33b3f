#include "muster/ps/inbox.h"

#include <utility>

namespace muster {

template <typename Change>
void Inbox::change(const Change& change) {
  {
    const MutexLock lock(mutex_);
    change(letters_, failure_);
    count_.fetch_add(1);
  }
  wake(door_.bell);
}

void Inbox::put(std::shared_ptr<Seat> arrival) {
  change([&](Letters& letters, auto&) { letters.arrivals.push_back(std::move(arrival)); });
}

void Inbox::put(Loss loss) {
  change([&](Letters& letters, auto&) { letters.losses.push_back(loss); });
}

void Inbox::put(Order order) {
  change([&](Letters& letters, auto&) { letters.orders.push_back(std::move(order)); });
}

void Inbox::put(std::exception_ptr failure) {
  change([&](Letters&, std::exception_ptr& first) { first = std::move(failure); });
}

Inbox::Letters Inbox::take() {
  const MutexLock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  count_.store(0);
  return std::exchange(letters_, {});
}

std::vector<std::shared_ptr<Seat>> Inbox::arrivals() const {
  const MutexLock lock(mutex_);
  return letters_.arrivals;
}

}  // namespace muster
