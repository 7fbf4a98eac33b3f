#include "muster/train/unregistered_tensors.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "muster/train/flat_model.h"
#include "muster/train/recorded_nodes.h"

namespace muster::detail {
namespace {

using torch::autograd::AccumulateGrad;

// The nodes that accumulate gradients in the graph of a tensor.
std::vector<AccumulateGrad*> accumulators_of(const torch::Tensor& tensor) {
  std::vector<AccumulateGrad*> found;
  for (auto* const node : recorded_nodes(tensor)) {
    if (auto* const accumulator = dynamic_cast<AccumulateGrad*>(node)) found.push_back(accumulator);
  }
  return found;
}

}  // namespace

std::string UnregisteredTensors::look(const torch::Tensor& loss) {
  const auto before = std::exchange(last_, {});
  std::string shape;
  for (auto* const accumulator : accumulators_of(loss)) {
    const auto& tensor = accumulator->variable;
    if (tensor.numel() == 0 || FlatModel::is_trained(*accumulator)) continue;
    last_.emplace_back(tensor.getIntrusivePtr());
    const auto is_same = [&](const auto& other) {
      return !other.expired() && other._unsafe_get_target() == tensor.unsafeGetTensorImpl();
    };
    if (shape.empty() && std::ranges::any_of(before, is_same))
      shape = fmt::format("[{}]", fmt::join(tensor.sizes(), ", "));
  }
  return shape;
}

}  // namespace muster::detail
