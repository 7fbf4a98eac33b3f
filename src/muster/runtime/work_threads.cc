#include "muster/runtime/work_threads.h"

#include <utility>

namespace muster::detail {

void WorkThreads::run(std::function<void()> work) {
  const MutexLock lock(mutex_);
  if (stopping_) return;
  waiting_.push_back(std::move(work));
  if (idle_ >= waiting_.size()) {
    changed_.notify_one();
  } else {
    threads_.emplace_back([this] { serve(); });
  }
}

void WorkThreads::stop() {
  std::vector<std::thread> threads;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    threads = std::exchange(threads_, {});
  }
  for (auto& thread : threads) thread.join();
}

void WorkThreads::serve() {
  MutexLock lock(mutex_);
  while (true) {
    if (!waiting_.empty()) {
      const auto work = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      work();
      lock.lock();
      continue;
    }
    if (stopping_) return;
    ++idle_;
    changed_.wait(lock);
    --idle_;
  }
}

}  // namespace muster::detail
