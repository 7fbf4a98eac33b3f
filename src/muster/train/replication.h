#pragma once

// What keeps the workers' modules equal, beside the update of trained parameters: they are compared at the
// start, take over the chief's values, and then its buffers after each step. Called by all ranks, each from
// one thread: these are collectives of the communicator, which block and throw as such. Nothing is kept.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "muster/communicator.h"

namespace muster::detail {

/// Throws InvalidArgument on all ranks when their descriptions, of several lines, are not the same: with the
/// first line that differs from the chief's, and `name_of` the rank that has it.
void check_same(Communicator& communicator, const std::string& description,
                const std::function<std::string(int rank)>& name_of);

/// Lines of two texts, where they first differ: "the chief has ..., it has ..."; "" when they do not.
std::string first_difference(const std::string& chiefs, const std::string& mine);

/// The same for tensors of the same types and sizes, in the same order.
int64_t fingerprint_of_sizes(const std::vector<torch::Tensor>& tensors);

/// Throws InvalidArgument where the chief's is another than that of this worker's tensors.
void check_sizes(int64_t chiefs, const std::vector<torch::Tensor>& mine);

/// Of each tensor: the sum of its values, the same negated, and the sum of the absolute values. Where `most`
/// has the largest of all workers, the first tensor that is not nearly the same on all.
std::vector<double> sums_of_values(const std::vector<torch::Tensor>& tensors);
std::optional<size_t> first_that_differs(const std::vector<double>& most);

/// Makes the tensors, one after the other, those of rank 0.
void broadcast_tensors(Communicator& communicator, std::vector<torch::Tensor> tensors);

/// The same for small tensors, all at once and often. Throws InvalidArgument where their sizes differ.
class BufferBroadcast {
 public:
  explicit BufferBroadcast(Communicator& communicator) : communicator_(communicator) {}

  void run(const std::vector<torch::Tensor>& buffers);

 private:
  Communicator& communicator_;
  std::shared_ptr<void> memory_;
  size_t capacity_ = 0;
};

}  // namespace muster::detail
