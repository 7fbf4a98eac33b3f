#pragma once

// Adds up sums of several hosts: a thread of the first worker of each host, which adds up a bucket with those
// of the other hosts as soon as the host's workers have reduced it, while their backward passes go on. It
// sleeps when there is nothing to add up.
//
//   ReducerThread reducer({.between = comm.split(...), ...});
//   reducer.begin(round);                        // follows the workers to the end of the round
//
// When all buckets are there, it adds up what the workers said (SharedStep::Control) and shows the round as
// reduced (SharedStep::round_reduced). A failure breaks the workers' communicator, and is thrown by check().
//
// begin() and check() may be called by any thread, and do not block. The destructor waits for the thread,
// which it interrupts in the middle of a round.

#include <exception>
#include <memory>
#include <thread>

#include "muster/base/mutex.h"
#include "muster/communicator.h"
#include "muster/train/buckets.h"
#include "muster/train/shared_step.h"

namespace muster::detail {

class ReducerThread {
 public:
  struct Options {
    Communicator& workers;                  ///< is broken when we fail
    std::unique_ptr<Communicator> between;  ///< the first workers of all hosts
    const FlatLayout& layout;
    const Buckets& buckets;
    SharedStep& shared;
    std::byte* sums = nullptr;
    std::chrono::milliseconds timeout{0};  ///< for the other hosts, in each operation
  };

  explicit ReducerThread(Options options);
  ~ReducerThread();
  ReducerThread(const ReducerThread&) = delete;
  ReducerThread& operator=(const ReducerThread&) = delete;

  void begin(uint64_t round);

  /// Throws what went wrong.
  void check();

 private:
  void run();
  void reduce(uint64_t round);
  void gather_control(uint64_t round);
  template <typename Ready>
  void wait(const Ready& ready);

  struct Stopped {};

  Options options_;
  SharedHost& host_;
  Mutex mutex_;
  ConditionVariable changed_;
  uint64_t begun_ MUSTER_GUARDED_BY(mutex_) = 0;
  uint64_t finished_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::exception_ptr error_ MUSTER_GUARDED_BY(mutex_);
  std::atomic<bool> stopping_{false};
  uint64_t reduced_ = 0;  // rounds; of the thread only
  std::thread thread_;
};

/// The smallest size of bucket that moves nearly as many bytes a second as the best, found by measuring.
/// Called by all ranks; gives the first rank's finding. `most`: bytes that there are to move.
size_t measure_bucket(Communicator& between, size_t most);

}  // namespace muster::detail
