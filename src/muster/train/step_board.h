#pragma once

// What the workers of one host tell each other in a step, in a block of memory that they share.
//
//   announce   a worker begins a round: what its gradients count for
//   deliver    the gradient of one parameter is there, at a place that the others can read
//   complete   its backward pass has ended: what it has not delivered does not exist
//   tally      the chunks of a stage that somebody has taken, and those that are done: whoever is free takes
//              the next, so that nobody waits while there is work
//
// A round is one step, or one that turns out to be none because all workers have run out of data. A worker
// can be at most one round ahead of another: what it says has two places, for odd and for even rounds.
// Tallies only grow.
//
// Publishing is by sequentially consistent exchange, and wakes those who sleep (net/signal.h).

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "muster/collective/shared_host.h"
#include "muster/net/signal.h"

namespace muster {

class StepBoard {
 public:
  struct Shape {
    size_t parameters = 0;
    size_t chunks = 0;
    size_t buckets = 0;
  };

  struct Announcement {
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

  struct alignas(128) Tally {
    std::atomic<uint64_t> taken{0};
    alignas(64) std::atomic<uint64_t> done{0};
  };

  /// Of one chunk: what later stages need of the earlier ones.
  struct ChunkNorms {
    double gradient = 0;
    double parameter = 0;
    double update = 0;
  };

  static constexpr size_t kStages = 4;

  /// Shares the block: called by all workers of the communicator.
  StepBoard(SharedHost& host, Shape shape);

  // What this worker says.
  void announce(uint64_t round, const Announcement& announcement);
  void deliver(uint64_t round, size_t parameter, uint64_t place, bool held);
  void complete(uint64_t round, double loss);

  // What a worker of the host has said, by its index.
  bool announced(int index, uint64_t round) const;
  bool completed(int index, uint64_t round) const;

  /// Whether it is known what the worker brings for this parameter.
  bool settled(int index, uint64_t round, size_t parameter) const;

  // These only after it has announced, completed, settled.
  const Announcement& announcement(int index, uint64_t round) const;
  double loss(int index, uint64_t round) const;
  Delivery delivery(int index, uint64_t round, size_t parameter) const;

  Tally& tally(size_t stage) { return head().tallies[stage]; }
  std::atomic<uint64_t>& bucket_done(size_t bucket) { return buckets_[bucket]; }
  ChunkNorms& norms(size_t chunk) { return norms_[chunk]; }

  /// What is known of a round as a whole, once the other hosts have been heard: the sums of what all workers
  /// said, and for each parameter how many had a gradient.
  struct Control {
    double total = 0;
    double loss = 0;
    double lr = 0;
    double changed = 0;
  };
  std::atomic<uint64_t>& round_arrived() { return head().arrived; }
  Control& control() { return *reinterpret_cast<Control*>(control_); }
  double& touched(size_t parameter) { return control_[kControl + parameter]; }
  double* control_values() { return control_; }
  size_t control_count() const { return kControl + shape_.parameters; }

  Bell& bell() { return speaker(host_.index()).bell; }
  Bell& courier_bell() { return head().courier; }  ///< of the thread that speaks with the other hosts
  void wake_all();

 private:
  struct Head {
    std::array<Tally, kStages> tallies;
    alignas(64) std::atomic<uint64_t> arrived{0};
    Bell courier;
  };
  struct alignas(128) Speaker {
    Bell bell;
    alignas(64) std::atomic<uint64_t> announced{0};
    std::array<Announcement, 2> announcements;
    alignas(64) std::atomic<uint64_t> completed{0};
    std::array<double, 2> losses{};
  };
  struct Post {
    std::atomic<uint64_t> round{0};
    uint64_t place = 0;  // twice the place, and one more when it is held
  };

  static constexpr size_t kControl = sizeof(Control) / sizeof(double);

  Head& head() const { return *reinterpret_cast<Head*>(memory_.get()); }
  Speaker& speaker(int index) const { return speakers_[index]; }
  Post& post(int index, uint64_t round, size_t parameter) const;

  SharedHost& host_;
  const Shape shape_;
  std::shared_ptr<void> memory_;
  Speaker* speakers_ = nullptr;
  Post* posts_ = nullptr;
  std::atomic<uint64_t>* buckets_ = nullptr;
  ChunkNorms* norms_ = nullptr;
  double* control_ = nullptr;
};

}  // namespace muster
