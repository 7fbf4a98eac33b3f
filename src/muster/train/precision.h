#pragma once

// --precision: in what the forward pass computes. The parameters stay float32, and so do the update and its
// state; with bf16 or fp16, libtorch's autocast converts what goes into matrix products and convolutions.
//
// Autocast is a state of the thread, which a Scope sets and resets. Nothing blocks.

#include <string>

namespace muster::detail {

class Precision {
 public:
  /// "fp32", "bf16" or "fp16". Makes sure that the processor can do it: keeps oneDNN away from instructions
  /// that are advertised but do not work, and with `warn` says so when bf16 is slower here than fp32.
  /// Throws InvalidArgument where libtorch has no kernels for it.
  Precision(const std::string& name, bool warn);

  /// Whether it is not fp32.
  bool is_reduced() const { return reduced_; }

  /// What the loss should be multiplied by at first; 0: small gradients are safe as they are.
  double loss_scale() const { return loss_scale_; }

  /// While it lives, this thread computes in the precision.
  class Scope {
   public:
    explicit Scope(const Precision& precision);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const bool active_;
    bool before_ = false;
  };

 private:
  bool reduced_ = false;
  bool half_ = false;
  double loss_scale_ = 0;
};

}  // namespace muster::detail
