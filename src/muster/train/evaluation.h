#pragma once

// What a model has otherwise while it is evaluated, and gets back: the chief's buffers, and the mode of
// evaluation.
//
//   const BorrowedBuffers borrowed(group, model.buffers());
//   const EvaluationMode mode(module);
//
// They live on the stack of the thread that trains. Making BorrowedBuffers waits for the other workers, and
// throws what that throws; nothing else does.

#include <memory>
#include <vector>

#include <torch/nn/module.h>

#include "muster/train/worker_group.h"

namespace muster::detail {

/// The chief's buffers instead of this worker's own, which come back. Autograd is not told: an open graph
/// finds them as they were.
class BorrowedBuffers {
 public:
  BorrowedBuffers(WorkerGroup& group, const std::vector<torch::Tensor>& buffers);
  ~BorrowedBuffers();
  BorrowedBuffers(const BorrowedBuffers&) = delete;
  BorrowedBuffers& operator=(const BorrowedBuffers&) = delete;

 private:
  const std::vector<torch::Tensor> tensors_;  // as the module has them
  std::vector<torch::Tensor> buffers_;        // in the same memory, unless they were given other
  std::vector<torch::Tensor> own_;            // values
};

/// The module, which outlives this, in evaluation mode; each of its parts is then as it was.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module);
  ~EvaluationMode();
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& module_;
  const bool was_training_;
  const std::vector<std::shared_ptr<torch::nn::Module>> parts_;
  std::vector<bool> modes_;
};

}  // namespace muster::detail
