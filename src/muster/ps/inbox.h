#pragma once

// What other threads bring to the one that works on a server's store. They ring at its door. Thread-safe.

#include <atomic>
#include <exception>
#include <memory>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/ps/seats.h"

namespace muster {

class Inbox {
 public:
  struct Loss {
    int worker = 0;
    int incarnation = 0;
  };
  struct Letters {
    std::vector<std::shared_ptr<Seat>> arrivals;
    std::vector<Loss> losses;
    std::vector<Order> orders;  ///< of the first server
  };

  explicit Inbox(Door& door) : door_(door) {}

  void put(std::shared_ptr<Seat> arrival);
  void put(Loss loss);
  void put(Order order);

  /// A thread could not go on.
  void put(std::exception_ptr failure);

  bool empty() const { return count_.load() == 0; }

  /// Throws what a thread failed with.
  Letters take();

  /// Those that have not been taken.
  std::vector<std::shared_ptr<Seat>> arrivals() const;

 private:
  template <typename Change>
  void change(const Change& change);

  Door& door_;
  std::atomic<uint64_t> count_{0};
  mutable Mutex mutex_;
  Letters letters_ MUSTER_GUARDED_BY(mutex_);
  std::exception_ptr failure_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster
