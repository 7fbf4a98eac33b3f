#pragma once

// What a worker of ps-local does between two averages: it updates its own copy of the parameters, and knows
// how far it has come from those that it read from the servers (the anchor).
//
//   LocalSteps steps({.layout = layout, .rule = rule, .parameters = memory, .allocate = allocate});
//   steps.anchor();                                  // the parameters are as they were read
//   steps.begin(); steps.deliver(3, gradient); steps.update(start);
//   ... steps.delta(3) ...                           // of all parameters, when steps.count() is enough
//   steps.forget();
//
// One thread uses it. Nothing waits for others.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "muster/optim/shard_update.h"
#include "muster/train/strategy.h"

namespace muster::detail {

class LocalSteps {
 public:
  struct Options {
    const FlatLayout& layout;  ///< outlives this
    UpdateRulePtr rule;
    std::byte* parameters = nullptr;                              ///< of the layout; outlives this
    double clip_norm = 0;                                         ///< of this worker's gradient; 0: none
    std::function<std::shared_ptr<void>(size_t bytes)> allocate;  ///< memory for deltas, where servers see it
  };

  explicit LocalSteps(const Options& options);

  /// The parameters are the servers' now; whether they are so still.
  void anchor();
  bool is_at_anchor() const;

  /// A step: its gradients, as Strategy::deliver() says, then the update.
  void begin();
  void deliver(size_t parameter, const void* gradient) { gradients_[parameter] = gradient; }
  ShardUpdate::Result update(const StepStart& start);

  /// A step is over, also one whose gradient was left out.
  void count_step(int64_t samples);
  int64_t count() const { return count_; }  ///< since the last average
  int64_t samples() const { return samples_; }
  void forget() { count_ = samples_ = 0; }

  /// The anchor less the parameter as it is now, in the parameter's type; stays as it is until it is asked for
  /// again.
  const void* delta(size_t parameter);

  std::byte* state(size_t state) { return update_.state(state); }
  int64_t updates(size_t parameter) const { return update_.updates()[parameter]; }
  void set_updates(size_t parameter, int64_t updates) { update_.set_updates(parameter, updates); }

 private:
  const FlatLayout& layout_;
  const std::byte* const parameters_;
  ShardUpdate update_;
  ShardUpdate::SliceData gradients_;
  const std::shared_ptr<std::byte> anchor_;
  const std::shared_ptr<std::byte> delta_;
  int64_t count_ = 0;
  int64_t samples_ = 0;
};

}  // namespace muster::detail
