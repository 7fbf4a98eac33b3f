#pragma once

// The update rules: torch::optim's, with its names, defaults and arithmetic, and the two for large batches.
//
//   auto rule = adamw({.lr = 3e-4, .weight_decay = 0.1});
//
// A factory throws InvalidArgument for options that make no sense. d is the scaled gradient, with the weight
// decay added to it: gradient_scale * gradient + weight_decay * parameter. Slots are in the order in which
// they are named here.

#include <string>

#include "muster/optim/update_rule.h"

namespace muster {

/// parameter -= lr * d. With momentum, one slot: slot = momentum * slot + (1 - dampening) * d, the first time
/// d itself, and parameter -= lr * slot (Nesterov: lr * (d + momentum * slot)).
struct SgdOptions {
  double lr = 1e-2;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;  ///< needs momentum, and no dampening
};
UpdateRulePtr sgd(SgdOptions options = {});

/// Two slots, the means of d and of d * d, and their bias corrected:
/// parameter -= lr * mean / (sqrt(mean of squares) + eps). AMSGrad: a third slot, the largest mean of
/// squares.
struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
};
UpdateRulePtr adam(AdamOptions options = {});

/// Adam with the weight decay apart from the gradient: parameter *= 1 - lr * weight_decay first.
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
};
UpdateRulePtr adamw(AdamWOptions options = {});

/// One slot, the sum of d * d: parameter -= lr / (1 + (step - 1) * lr_decay) * d / (sqrt(slot) + eps).
struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;  ///< what step 1 begins the sum with
  double eps = 1e-10;
};
UpdateRulePtr adagrad(AdagradOptions options = {});

/// Slots: the mean of d * d; if centered the mean of d; if there is momentum, that.
/// parameter -= lr * d / (sqrt(mean of squares) + eps), centered: of the variance.
struct RmsPropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
};
UpdateRulePtr rmsprop(RmsPropOptions options = {});

/// Layer-wise adaptive rates (You, Gitman, Ginsburg 2017). One slot if there is momentum:
/// slot = momentum * slot + lr * ratio * d, parameter -= slot,
/// ratio = trust * |parameter| / (|gradient| + weight_decay * |parameter| + eps).
/// The ratio is 1 where a norm is 0 or adapt is false.
struct LarsOptions {
  double lr = 0.1;
  double momentum = 0.9;
  double weight_decay = 0;
  double trust = 1e-3;
  double eps = 1e-8;
  bool nesterov = false;  ///< needs momentum
};
UpdateRulePtr lars(LarsOptions options = {});

/// Adam for large batches (You et al. 2019). Slots as Adam's; update = mean / (sqrt(mean of squares) + eps) +
/// weight_decay * parameter; parameter -= lr * ratio * update, ratio = |parameter| / |update|.
/// The ratio is 1 where a norm is 0 or adapt is false. measure() advances the slots; where adapt is false, it
/// does nothing and may be left out: apply() does it all.
struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 1e-2;
};
UpdateRulePtr lamb(LambOptions options = {});

/// The rule that a text of UpdateRule::to_string() describes. Throws InvalidArgument for anything else.
UpdateRulePtr parse_rule(const std::string& text);

}  // namespace muster
