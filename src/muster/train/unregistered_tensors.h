#pragma once

// Finds tensors that the loss depends on and nobody trains, as the weights of a layer that was never
// registered with its module: they require a gradient, get one, and stay as they are. Only those count that
// are in the graphs of two losses, since an input that requires a gradient is another tensor each time.
//
//   UnregisteredTensors unregistered;
//   const auto first = unregistered.look(loss_of_step_1);   // nothing yet
//   const auto found = unregistered.look(loss_of_step_2);   // "[8, 3]"
//
// Not thread-safe. Walks through the whole graph: for the first steps only.

#include <string>
#include <vector>

#include <torch/types.h>

namespace muster::detail {

class UnregisteredTensors {
 public:
  /// The shape of the first tensor that no FlatModel has, and that the last loss depended on too; else empty.
  std::string look(const torch::Tensor& loss);

 private:
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> last_;
};

}  // namespace muster::detail
