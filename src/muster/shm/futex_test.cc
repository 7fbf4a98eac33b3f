#include "muster/shm/futex.h"

#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

TEST(Futex, NoWakeIsMissedBetweenTwoThreadsThatAnswerEachOther) {
  for (const SpinPolicy spin_policy : {SpinPolicy{0, 0}, SpinPolicy{10, 0}, SpinPolicy{10, 10}}) {
    Doorbell doorbells[2];
    std::atomic<int> turn{0};
    constexpr int kTurns = 20'000;
    const auto play = [&](int self) {
      for (int i = self; i < kTurns; i += 2) {
        wait_until(
            doorbells[self], spin_policy, [&] { return turn.load(std::memory_order_acquire) == i; }, [] {});
        turn.exchange(i + 1);
        wake(doorbells[1 - self]);
      }
    };
    std::thread other([&] { play(1); });
    play(0);
    other.join();
    EXPECT_EQ(turn, kTurns);
  }
}

TEST(Futex, AWaitCanBeBrokenOff) {
  Doorbell doorbell;
  int checks = 0;
  EXPECT_THROW(wait_until(
                   doorbell, {.spins = 10, .yields = 10}, [] { return false; },
                   [&] {
                     if (++checks == 3) throw std::runtime_error("enough");
                   }),
               std::runtime_error);
}

}  // namespace
}  // namespace muster::detail
