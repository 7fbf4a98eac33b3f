#pragma once

// The gradients of one variable that replicas have computed, until an update uses them: on the variable's
// task. What becomes of them is decided elsewhere (replica_coordinator.h); an accumulator carries it out.
//
// Thread-safe. Commands of one accumulator wait for each other.

#include <cstdint>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/base/mutex.h"
#include "muster/runtime/replica_commands.h"
#include "muster/runtime/variables.h"

namespace muster::detail {

class Accumulator {
 public:
  /// The variable outlives it.
  explicit Accumulator(TaskVariable& variable) : variable_(variable) {}

  /// Keeps a gradient, without a copy: nobody changes it any more. Throws InvalidArgument for one that is not
  /// finite.
  void keep(int worker, uint64_t sequence, const at::Tensor& gradient);

  /// Carries out those commands that nobody has carried out here yet; of a coordinator that is new, all. A
  /// gradient that is not there, since the task was started again after it came, is left out of an average,
  /// with a warning. Throws as TaskVariable::update() does; then the command is still to be carried out.
  void carry_out(const CommandList& list, const UpdateRule& rule);

 private:
  struct Kept {
    uint64_t sequence = 0;
    at::Tensor gradient;
  };

  at::Tensor sum_with(const std::vector<GradientSource>& sources) const MUSTER_REQUIRES(mutex_);
  void forget(const GradientSource& source, bool with_earlier) MUSTER_REQUIRES(mutex_);

  TaskVariable& variable_;
  Mutex mutex_;
  std::map<int, std::vector<Kept>> kept_ MUSTER_GUARDED_BY(mutex_);  // of each worker, as they came
  at::Tensor sum_ MUSTER_GUARDED_BY(mutex_);            // of this step, of workers that compute again already
  uint64_t coordinator_ MUSTER_GUARDED_BY(mutex_) = 0;  // whose commands these are
  int64_t carried_out_ MUSTER_GUARDED_BY(mutex_) = 0;   // the number of the last command
};

}  // namespace muster::detail
