#include "muster/ps/team.h"

#include <algorithm>

namespace muster {
namespace {

// A helper that has just worked looks out for more: updates often come in a row.
constexpr Patience kHelperPatience = {.spins = 0, .yields = 50};

}  // namespace

Team::Team(int threads) : bells_(static_cast<size_t>(std::max(threads, 1) - 1)) {
  for (size_t i = 0; i < bells_.size(); ++i) helpers_.emplace_back([this, i] { help(i); });
}

Team::~Team() {
  stopping_.exchange(true);
  for (auto& bell : bells_) wake(bell);
  for (auto& helper : helpers_) helper.join();
}

void Team::take(bool yields) {
  for (size_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) {
    (*work_)(i);
    if (yields) std::this_thread::yield();
  }
}

void Team::help(size_t helper) {
  uint64_t seen = 0;
  for (;;) {
    const auto has_work = [&] { return round_.load() != seen && round_.load() % 2 == 1; };
    wait_until(
        bells_[helper], kHelperPatience, [&] { return stopping_.load() || has_work(); }, [] {});
    if (stopping_.load()) return;
    busy_.fetch_add(1);
    const uint64_t round = round_.load();
    if (round % 2 == 1) {
      seen = round;
      take(/*yields=*/true);
    }
    busy_.fetch_sub(1);
    wake(done_);
  }
}

void Team::run(size_t count, const std::function<void(size_t)>& work) {
  if (count <= 1 || helpers_.empty()) {
    for (size_t i = 0; i < count; ++i) work(i);
    return;
  }
  work_ = &work;
  count_ = count;
  next_.store(0);
  round_.fetch_add(1);
  for (auto& bell : bells_) wake(bell);
  take(/*yields=*/false);
  round_.fetch_add(1);
  wait_until(
      done_, kHelperPatience, [&] { return busy_.load() == 0; }, [] {});
}

}  // namespace muster
