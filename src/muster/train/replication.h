#pragma once

// What keeps the workers' modules equal, beside the update of trained parameters: they are compared at the
// start, take over the chief's values, and then its buffers after each step. Called by all ranks, each from
// one thread: these are collectives of the communicator, which block and throw as such. Nothing is kept.

#include <functional>
#include <memory>
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

/// Makes the tensors, one after the other, those of rank 0.
void broadcast_tensors(Communicator& communicator, std::vector<torch::Tensor> tensors);

/// The same for small tensors, all at once and often.
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
