#include "muster/ps/server/readers.h"

#include "muster/deadline.h"

namespace muster::detail {
namespace {

using Clock = Deadline::Clock;

struct Readers {
  int count = 0;
  uint64_t progress = 0;
  bool operator==(const Readers&) const = default;
};

}  // namespace

void wait_for_readers(const std::vector<const SessionSlot*>& slots, int64_t version, Doorbell& doorbell,
                      SpinPolicy spin_policy, const std::function<bool()>& is_over,
                      std::chrono::milliseconds timeout) {
  const auto readers = [&] {
    Readers found;
    for (const SessionSlot* slot : slots) {
      const int64_t reading = slot->reading.load();
      if (reading == 0 || reading > version) continue;
      ++found.count;
      found.progress += slot->chunks_read.load(std::memory_order_relaxed);
    }
    return found;
  };
  Readers last = readers();
  if (last.count == 0) return;
  auto until = Clock::now() + timeout;
  const auto waited_enough = [&] {
    const Readers now = readers();
    if (now.count == 0 || is_over()) return true;
    if (now == last) return Clock::now() > until;
    last = now;
    until = Clock::now() + timeout;
    return false;
  };
  wait_until(doorbell, spin_policy, waited_enough, [] {});
}

}  // namespace muster::detail
