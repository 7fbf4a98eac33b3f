#include "muster/shm/thread_pool.h"

#include <algorithm>

namespace muster::detail {
namespace {

// A thread that has just worked looks out for more: updates often come in a row.
constexpr SpinPolicy kPoolSpinPolicy = {.spins = 0, .yields = 50};

}  // namespace

ThreadPool::ThreadPool(int threads) : doorbells_(static_cast<size_t>(std::max(threads, 1) - 1)) {
  for (size_t i = 0; i < doorbells_.size(); ++i) threads_.emplace_back([this, i] { wait_for_work(i); });
}

ThreadPool::~ThreadPool() {
  stopping_.exchange(true);
  for (auto& doorbell : doorbells_) wake(doorbell);
  for (auto& thread : threads_) thread.join();
}

void ThreadPool::take(bool yields) {
  while (const auto item = counter_.claim(count_)) {
    (*work_)(*item);
    if (yields) std::this_thread::yield();
  }
}

void ThreadPool::wait_for_work(size_t thread) {
  uint64_t seen = 0;
  for (;;) {
    const auto has_work = [&] { return round_.load() != seen && round_.load() % 2 == 1; };
    wait_until(
        doorbells_[thread], kPoolSpinPolicy, [&] { return stopping_.load() || has_work(); }, [] {});
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

void ThreadPool::run(size_t count, const std::function<void(size_t)>& work) {
  if (count <= 1 || threads_.empty()) {
    for (size_t i = 0; i < count; ++i) work(i);
    return;
  }
  work_ = &work;
  count_ = count;
  counter_.reset();
  round_.fetch_add(1);
  for (auto& doorbell : doorbells_) wake(doorbell);
  take(/*yields=*/false);
  round_.fetch_add(1);
  wait_until(
      done_, kPoolSpinPolicy, [&] { return busy_.load() == 0; }, [] {});
}

}  // namespace muster::detail
