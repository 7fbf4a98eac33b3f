#include "muster/train/evaluation.h"

#include "muster/base/log.h"

namespace muster::detail {

BorrowedBuffers::BorrowedBuffers(WorkerGroup& group, const std::vector<torch::Tensor>& buffers)
    : tensors_(buffers) {
  for (const auto& buffer : buffers) {
    buffers_.push_back(buffer.variable_data());
    own_.push_back(buffer.detach().clone());
  }
  group.share_buffers_for_evaluation(buffers_);
}

BorrowedBuffers::~BorrowedBuffers() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].copy_(own_[i]);
    // They may have been given other memory, as by load() and set_data(), or another size.
    if (tensors_[i].is_alias_of(buffers_[i]) && tensors_[i].sizes() == buffers_[i].sizes()) continue;
    try {
      tensors_[i].set_data(buffers_[i]);
    } catch (const c10::Error& error) {
      log_warning("a buffer is not what it was before evaluate(): {}", error.what_without_backtrace());
    }
  }
}

EvaluationMode::EvaluationMode(torch::nn::Module& module)
    : module_(module), was_training_(module.is_training()), parts_(module.modules(/*include_self=*/false)) {
  for (const auto& part : parts_) modes_.push_back(part->is_training());
  module_.eval();
}

EvaluationMode::~EvaluationMode() {
  module_.train(was_training_);
  for (size_t i = 0; i < parts_.size(); ++i) parts_[i]->train(modes_[i]);  // a module stands before its own
}

}  // namespace muster::detail
