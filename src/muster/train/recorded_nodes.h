#pragma once

// What autograd has recorded of how a tensor was computed. The nodes live as long as the tensor's graph does.

#include <set>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

namespace muster::detail {

/// All of them, each once.
inline std::vector<torch::autograd::Node*> recorded_nodes(const torch::Tensor& tensor) {
  std::vector<torch::autograd::Node*> found;
  std::set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open = {tensor.grad_fn().get()};
  while (!open.empty()) {
    torch::autograd::Node* const node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    found.push_back(node);
    for (const auto& edge : node->next_edges()) open.push_back(edge.function.get());
  }
  return found;
}

}  // namespace muster::detail
