#include "muster/ps/inbox.h"

#include <utility>

namespace muster {

template <typename Change>
void Inbox::change(const Change& change) {
  {
    const std::lock_guard lock(mutex_);
    change();
    count_.fetch_add(1);
  }
  wake(door_.bell);
}

void Inbox::put(std::shared_ptr<Seat> arrival) {
  change([&] { letters_.arrivals.push_back(std::move(arrival)); });
}

void Inbox::put(Loss loss) {
  change([&] { letters_.losses.push_back(loss); });
}

void Inbox::put(Order order) {
  change([&] { letters_.orders.push_back(std::move(order)); });
}

void Inbox::put(std::exception_ptr failure) {
  change([&] { failure_ = std::move(failure); });
}

Inbox::Letters Inbox::take() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  count_.store(0);
  return std::exchange(letters_, {});
}

std::vector<std::shared_ptr<Seat>> Inbox::arrivals() const {
  const std::lock_guard lock(mutex_);
  return letters_.arrivals;
}

}  // namespace muster
