#include "muster/net/signal.h"

#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(Signal, NothingIsLostBetweenTwoThreadsThatAnswerEachOther) {
  for (const Patience patience : {Patience{0, 0}, Patience{10, 0}, Patience{10, 10}}) {
    Bell bells[2];
    std::atomic<int> turn{0};
    constexpr int kTurns = 20'000;
    const auto play = [&](int self) {
      for (int i = self; i < kTurns; i += 2) {
        wait_until(
            bells[self], patience, [&] { return turn.load(std::memory_order_acquire) == i; }, [] {});
        turn.exchange(i + 1);
        wake(bells[1 - self]);
      }
    };
    std::thread other([&] { play(1); });
    play(0);
    other.join();
    EXPECT_EQ(turn, kTurns);
  }
}

TEST(Signal, AWaitCanBeBrokenOff) {
  Bell bell;
  int checks = 0;
  EXPECT_THROW(wait_until(
                   bell, {.spins = 10, .yields = 10}, [] { return false; },
                   [&] {
                     if (++checks == 3) throw std::runtime_error("enough");
                   }),
               std::runtime_error);
}

}  // namespace
}  // namespace muster
