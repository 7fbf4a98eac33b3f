#pragma once

// What the workers of one host tell each other in a step, in memory that they share.
//
//   begin      a worker begins a round: what its gradients count for
//   deliver    the gradient of one parameter is there, at an offset that the others can read
//   complete   its backward pass has ended: what it has not delivered does not exist
//   counter    of the chunks of a pass, which whoever is free takes (shm/work_counter.h)
//
// A round is one step, or one that turns out to be none because all workers have run out of data. A worker
// can be at most one round ahead of another: what it says has two slots, for odd and for even rounds.
// Counters only grow.
//
// Publishing is by sequentially consistent exchange, and wakes those who sleep (shm/futex.h). Each worker
// writes what is its own, from one thread at a time; all may read everything. Nothing blocks or throws. The
// memory is the maker's, and outlives it.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "muster/collective/shared_host.h"
#include "muster/optim/update_rule.h"
#include "muster/shm/futex.h"
#include "muster/shm/work_counter.h"

namespace muster::detail {

class SharedStep {
 public:
  struct Shape {
    size_t parameters = 0;
    size_t ranges = 0;
    size_t buckets = 0;
  };

  struct Contribution {
    double weight = 0;
    double total = 0;
    double lr = 0;  ///< of the chief counts
    bool changed = false;
  };

  struct Delivery {
    bool exists = false;  ///< the worker has a gradient for this parameter
    const void* data = nullptr;
    bool held = false;
  };

  /// Of one range: what later passes need of the earlier ones.
  struct RangeNorms {
    double gradient = 0;
    Norms whole;
  };

  static constexpr size_t kPasses = 4;

  /// Shares the block: called by all workers of the communicator.
  SharedStep(SharedHost& host, Shape shape);

  // What this worker says.
  void begin(uint64_t round, const Contribution& contribution);
  void deliver(uint64_t round, size_t parameter, uint64_t offset, bool held);
  void complete(uint64_t round, double loss);

  // What a worker of the host has said, by its index.
  bool has_begun(int index, uint64_t round) const;
  bool completed(int index, uint64_t round) const;

  /// Whether it is known what the worker brings for this parameter.
  bool settled(int index, uint64_t round, size_t parameter) const;

  // These only after it has begun, completed, settled.
  const Contribution& contribution(int index, uint64_t round) const;
  double loss(int index, uint64_t round) const;
  Delivery delivery(int index, uint64_t round, size_t parameter) const;

  /// Whether a worker has a chunk in hand: what this one says of itself, and what it is told of another.
  void set_busy(bool busy) { worker(host_.index()).busy.store(busy, std::memory_order_relaxed); }
  bool busy(int index) const { return worker(index).busy.load(std::memory_order_relaxed); }

  /// A gradient that was infinite or not a number, as some worker of the host found it in this round: of which
  /// parameter, and whose; -1: of nobody, but of the sum. The first that was found stays.
  struct NotFinite {
    size_t parameter = 0;
    int rank = -1;
  };
  void note_not_finite(uint64_t round, const NotFinite& found);
  std::optional<NotFinite> not_finite(uint64_t round) const;

  WorkCounter& counter(size_t pass) { return head().counters[pass]; }
  std::atomic<uint64_t>& bucket_done(size_t bucket) { return buckets_[bucket]; }
  RangeNorms& norms(size_t range) { return norms_[range]; }

  /// What is known of a round as a whole, once the other hosts have been heard: the sums of what all workers
  /// said, and for each parameter how many had a gradient.
  struct Control {
    double total = 0;
    double loss = 0;
    double lr = 0;
    double changed = 0;
    double not_finite = 0;  ///< hosts that found a gradient that is not; of one, what it found
    double parameter = 0;
    double rank = 0;
  };
  std::atomic<uint64_t>& round_reduced() { return head().reduced; }
  Control& control() { return *reinterpret_cast<Control*>(control_); }
  double& touched(size_t parameter) { return control_[kControl + parameter]; }
  double* control_values() { return control_; }
  size_t control_count() const { return kControl + shape_.parameters; }

  Doorbell& doorbell() { return worker(host_.index()).doorbell; }
  Doorbell& reducer_doorbell() { return head().reducer; }  ///< of the thread that speaks with the other hosts
  void wake_all();

 private:
  struct Head {
    std::array<WorkCounter, kPasses> counters;
    alignas(64) std::atomic<uint64_t> reduced{0};
    std::atomic<uint64_t> not_finite{0};  // round, parameter and rank + 1, in 32, 20 and 12 bits
    Doorbell reducer;
  };
  struct alignas(128) WorkerSlot {
    Doorbell doorbell;
    alignas(64) std::atomic<uint64_t> begun{0};
    std::array<Contribution, 2> contributions;
    alignas(64) std::atomic<uint64_t> completed{0};
    std::array<double, 2> losses{};
    alignas(64) std::atomic<bool> busy{false};
  };
  struct GradientSlot {
    std::atomic<uint64_t> round{0};
    uint64_t offset = 0;  // twice the offset, and one more when it is held
  };

  static constexpr size_t kControl = sizeof(Control) / sizeof(double);

  Head& head() const { return *reinterpret_cast<Head*>(memory_.get()); }
  WorkerSlot& worker(int index) const { return workers_[index]; }
  GradientSlot& gradient(int index, uint64_t round, size_t parameter) const;

  SharedHost& host_;
  const Shape shape_;
  std::shared_ptr<void> memory_;
  WorkerSlot* workers_ = nullptr;
  GradientSlot* gradients_ = nullptr;
  std::atomic<uint64_t>* buckets_ = nullptr;
  RangeNorms* norms_ = nullptr;
  double* control_ = nullptr;
};

}  // namespace muster::detail
