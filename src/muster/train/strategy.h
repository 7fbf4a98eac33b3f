#pragma once

// How the workers' gradients become new parameters. The Trainer computes gradients and delivers them one by
// one, while backward still runs; the strategy brings those of all workers together and applies the update.
//
//   strategy.begin({.weight = 1, .total = 1, .lr = 0.05});
//   strategy.deliver(3, gradient, /*held=*/false);  // as backward finishes them, each parameter once
//   StepResult result = strategy.finish(loss);      // returns when the parameters are those of the next step
//
// It knows parameters as ranges of memory, not as tensors. begin, deliver and finish are called one after the
// other, deliver from whichever thread runs the backward pass. All throw what broke the job: PeerLost,
// DeadlineExceeded (naming who did not deliver what), InvalidArgument (only some workers' models changed),
// Aborted.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "muster/job/counted_on.h"
#include "muster/optim/flat_layout.h"

namespace muster::detail {

/// What a worker says of its step before its gradients. A worker that has run out of data brings a weight of
/// 0, and delivers nothing.
struct StepStart {
  double weight = 0;          ///< what its gradients are multiplied by
  double total = 0;           ///< what it adds to the divisor of the average
  double lr = 0;              ///< the learning rate; the chief's counts
  double gradient_scale = 1;  ///< the average is multiplied by it: one over the loss scale
  int64_t samples = 0;        ///< of its batches; 0: nobody said how many
  bool changed = false;       ///< its model has other parameters than before: it brings nothing else
};

struct StepResult {
  bool finished = false;   ///< nobody brought anything: all workers have run out
  int64_t dropped = 0;     ///< gradients of this worker that were not used
  int64_t staleness = 0;   ///< updates between reading the parameters and using the gradient
  bool changed = false;    ///< all workers' models have other parameters
  bool applied = false;    ///< the parameters have changed; false when a gradient was not finite
  std::string not_finite;  ///< "the gradient of fc1.weight from worker/1": it was infinite or not a number
  double total = 0;        ///< the divisor of the average
  double lr = 0;    ///< the learning rate that was used, where workers must agree on it; else this one's
  double loss = 0;  ///< the mean over the workers, by what they added to the divisor
  double gradient_norm = 0;  ///< of the averaged gradient before clipping; 0 when nothing needed it
  std::chrono::duration<double> wait{0};    ///< for other workers
  std::chrono::duration<double> update{0};  ///< reducing gradients and updating parameters
};

class Strategy : public CountedOn {
 public:
  /// For people: "all-reduce: 2 workers on this host update a share each".
  virtual std::string explain() const = 0;

  /// Where the parameters are, at the offsets of the layout; and what the update rule remembers of one, at
  /// the offsets of the layout's state.
  virtual const FlatLayout& layout() const = 0;
  virtual std::shared_ptr<std::byte> parameters() = 0;
  virtual std::byte* state(size_t state) = 0;

  /// Whether this worker fills parameters() and state() at first: one on each host does.
  virtual bool initialises() const = 0;

  /// The global step, where it is not this worker's rounds that count; and whether training is over, on all
  /// workers.
  virtual std::optional<int64_t> global_step() const { return std::nullopt; }
  virtual bool done() const { return false; }

  /// The samples that all workers have used, where somebody counts them for all.
  virtual std::optional<int64_t> samples() const { return std::nullopt; }

  /// How many updates a parameter has had.
  virtual int64_t updates(size_t parameter) const = 0;
  virtual void set_updates(size_t parameter, int64_t updates) = 0;

  /// The parameters were filled, or changed from outside: takes them over. Called by all workers.
  virtual void adopt_parameters() = 0;

  /// Whether what this worker alone changes in its parameters, between two steps, stays: it may then be taken
  /// over by adopt_parameters().
  virtual bool keeps_changes() const = 0;

  /// A parameter that this worker has written to where the memory is its own to read only, as far as that is
  /// seen.
  virtual std::optional<size_t> written() const { return std::nullopt; }

  /// Makes parameters() the newest there are, where they live elsewhere.
  virtual void refresh() {}

  virtual void begin(const StepStart& start) = 0;

  /// The gradient of a parameter, dense and of its type, or nullptr. Its memory must stay as it is until
  /// finish() has returned. `held`: something may still read the parameter in this backward pass, so that it
  /// must not change before the pass has ended on all workers.
  virtual void deliver(size_t parameter, const void* gradient, bool held) = 0;

  /// Parameters that were not delivered have no gradient.
  virtual StepResult finish(double loss) = 0;
};

}  // namespace muster::detail
