#pragma once

// Operations of a rank in their order: one at a time, on the thread that waits for one, or on the queue's own
// thread when nobody waits. It also keeps the record of the last ones (the flight recorder).
//
// Thread-safe. run() and wait() block until the operation is done; submit() does not. What an operation
// throws is thrown by run(), and kept in the Item otherwise.

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/fast_clock.h"
#include "muster/base/mutex.h"
#include "muster/base/wait_registry.h"
#include "muster/collective/engine.h"
#include "muster/collective/operation.h"
#include "muster/deadline.h"

namespace muster::detail {

class OperationQueue {
 public:
  using Execute = std::function<void(const Operation&, uint64_t number, Deadline)>;

  /// Once wait() or done() has said that it is done, it does not change any more.
  struct Item {
    Operation operation;
    uint64_t number = 0;
    Deadline deadline = Deadline::never();
    bool done = false;                 ///< the queue's mutex guards it
    std::exception_ptr error;          ///< likewise, until it is done
    std::shared_ptr<const void> keep;  ///< what the operation needs to live until it is done; the executor's
    bool owns = false;                 ///< whether there was any such; does not change
  };

  /// `waits`, which may be null, knows the job's own thread: what others execute while it waits for them counts
  /// as its wait.
  explicit OperationQueue(Execute execute, WaitRegistry* waits = nullptr)
      : execute_(std::move(execute)), waits_(waits) {}
  ~OperationQueue() { stop(); }
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  /// Executes it in its turn and returns when it is done; throws what it threw.
  void run(const Operation& operation, Deadline deadline);

  /// Queues it and returns. `keep` is held until it is done, or never will be.
  std::shared_ptr<Item> submit(const Operation& operation, Deadline deadline,
                               std::shared_ptr<const void> keep = {});

  /// Waits for it, and helps where it can. False at the deadline.
  bool wait(Item& item, Deadline deadline);
  bool done(const Item& item) const;

  /// Waits for all that was submitted and keeps what it needs. Where something does not, that may be gone, and
  /// nothing is waited for. Throws what one of them threw that nobody holds any more.
  void finish();

  /// What is not done, for people: "receive(float32 x 4, from 1) number 2"; empty when all is.
  std::string in_flight() const;

  /// Ends the thread; what is still queued is not executed.
  void stop();

  Activity activity() const;

  /// The last operations, at most so many, the newest last. It keeps 64.
  std::vector<std::string> history(size_t most) const;

 private:
  struct Record {
    Operation operation;
    uint64_t number = 0;
    uint64_t began = 0;  // by the TickClock
    uint64_t ended = 0;  // as `began` while it runs
    bool failed = false;
  };
  Record& begin(const Operation& operation, uint64_t number) MUSTER_REQUIRES(mutex_);
  void execute_front(Deadline limit) MUSTER_REQUIRES(mutex_);
  void wait_for_change(MutexLock& lock, Deadline deadline) MUSTER_REQUIRES(mutex_);
  bool all_own() const MUSTER_REQUIRES(mutex_);
  void run_thread();

  const Execute execute_;
  WaitRegistry* const waits_;
  std::atomic<bool> main_waits_{false};
  const TickClock clock_;
  mutable Mutex mutex_;
  ConditionVariable changed_;
  uint64_t last_number_ MUSTER_GUARDED_BY(mutex_) = 0;
  bool busy_ MUSTER_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Item> executing_ MUSTER_GUARDED_BY(mutex_);  // one that was submitted
  std::exception_ptr unseen_error_ MUSTER_GUARDED_BY(mutex_);  // of the first that nobody held any more
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<Item>> queue_ MUSTER_GUARDED_BY(mutex_);
  std::array<Record, 64> records_ MUSTER_GUARDED_BY(mutex_);
  const Record* last_ MUSTER_GUARDED_BY(mutex_) = nullptr;  // the newest that has begun
  std::thread thread_ MUSTER_GUARDED_BY(mutex_);            // made by the first submit()
};

}  // namespace muster::detail
