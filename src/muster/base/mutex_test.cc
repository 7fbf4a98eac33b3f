#include "muster/base/mutex.h"

#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

// The example of the header.
class Counter {
 public:
  void add(int n) {
    const MutexLock lock(mutex_);
    add_locked(n);
    changed_.notify_all();
  }
  void wait_for(int n) {
    MutexLock lock(mutex_);
    while (count_ < n) changed_.wait(lock);
  }
  int count() {
    const MutexLock lock(mutex_);
    return count_;
  }

 private:
  void add_locked(int n) MUSTER_REQUIRES(mutex_) { count_ += n; }

  Mutex mutex_;
  ConditionVariable changed_;
  int count_ MUSTER_GUARDED_BY(mutex_) = 0;
};

TEST(Mutex, OneThreadAtATimeChangesWhatItGuards) {
  Counter counter;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 1000; ++n) counter.add(1);
    });
  }
  counter.wait_for(4000);
  EXPECT_EQ(counter.count(), 4000);
  for (auto& thread : threads) thread.join();
}

TEST(MutexLock, LetsOthersInBetweenUnlockAndLock) {
  Mutex mutex;
  int value = 0;
  MutexLock lock(mutex);
  lock.unlock();
  std::thread([&] {
    const MutexLock theirs(mutex);
    value = 1;
  }).join();
  lock.lock();
  EXPECT_EQ(value, 1);
}

TEST(MutexLock, OfACallerIsLetGoByUnlockingTheMutexItself) {
  Mutex mutex;
  bool reached = false;
  {
    const MutexLock lock(mutex);
    mutex.unlock();
    std::thread([&] {
      const MutexLock theirs(mutex);
      reached = true;
    }).join();
    mutex.lock();
  }
  const MutexLock again(mutex);  // would hang if it had not been given back
  EXPECT_TRUE(reached);
}

TEST(ConditionVariable, ATimedWaitEndsHoldingTheMutex) {
  Mutex mutex;
  ConditionVariable changed;
  MutexLock lock(mutex);
  while (changed.wait_until(lock, std::chrono::steady_clock::now() + 1ms) == std::cv_status::no_timeout) {
  }
  while (changed.wait_for(lock, 1ms) == std::cv_status::no_timeout) {
  }
  lock.unlock();
  lock.lock();  // throws if it was not held
}

TEST(SharedMutex, ReadersAreBesideEachOtherAndAWriterIsAlone) {
  SharedMutex mutex;
  int value = 0;
  {
    const ReaderLock ours(mutex);
    std::thread([&] { const ReaderLock theirs(mutex); }).join();  // would hang if a reader were alone
  }
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&] {
      for (int n = 0; n < 1000; ++n) {
        const WriterLock lock(mutex);
        ++value;
      }
    });
  }
  for (auto& thread : writers) thread.join();
  EXPECT_EQ(value, 4000);
}

TEST(Mutex, CostsNoMoreThanTheStandardOnes) {
  static_assert(sizeof(Mutex) == sizeof(std::mutex));
  static_assert(sizeof(ConditionVariable) == sizeof(std::condition_variable));
  static_assert(sizeof(SharedMutex) == sizeof(std::shared_mutex));
}

}  // namespace
}  // namespace muster::detail
