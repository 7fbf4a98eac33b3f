#include "muster/shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace muster::detail {
namespace {

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

// A spin is a pause instruction and a load, about 40 ns here: 1,000 of them outlast what a peer that is
// running needs to answer. A yield is about half a microsecond when nobody else wants the core.
constexpr int kSpins = 1000;
constexpr int kYields = 200;

}  // namespace

void wake(Doorbell& doorbell) {
  if (doorbell.sleeping.load() == 0) return;
  doorbell.sleeping.exchange(0);
  futex(doorbell.sleeping, FUTEX_WAKE, INT_MAX, nullptr);
}

void sleep_on(Doorbell& doorbell) {
  const timespec limit = {.tv_sec = 0, .tv_nsec = 50'000'000};
  futex(doorbell.sleeping, FUTEX_WAIT, 1, &limit);
}

SpinPolicy SpinPolicy::of(int ranks, int cores) {
  return {.spins = ranks <= cores ? kSpins : 0, .yields = kYields};
}

}  // namespace muster::detail
