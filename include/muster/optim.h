#pragma once

// The optimizers: torch::optim's, with the names, defaults and arithmetic of their options, two for large
// batches, and one for rows of embedding tables.
//
//   muster::optim::AdamW optimizer({.lr = 3e-4, .weight_decay = 0.1});
//   muster::Trainer trainer(job, net, optimizer);
//
// An optimizer here is a value that says how parameters are to change; it holds neither parameters nor state,
// so that one may serve several Trainers. Making one throws InvalidArgument for options that make no sense.
// Values may be copied, and read by any thread.
//
// In the formulas d is the averaged gradient with the weight decay added to it:
// gradient + weight_decay * parameter.

#include <array>
#include <memory>
#include <string>
#include <utility>

namespace muster {

namespace detail {
class RowRule;
class UpdateRule;
}  // namespace detail

namespace optim {

/// What SGD, Adam and the others are.
class Optimizer {
 public:
  double lr() const;              ///< The learning rate that it was made with.
  std::string to_string() const;  ///< "sgd lr=0.1 momentum=0.9 ...", with all options

  /// For Muster's own rooms: what carries it out.
  const std::shared_ptr<const detail::UpdateRule>& rule() const { return rule_; }

 protected:
  explicit Optimizer(std::shared_ptr<const detail::UpdateRule> rule) : rule_(std::move(rule)) {}

 private:
  std::shared_ptr<const detail::UpdateRule> rule_;  // shared: nobody changes it
};

/// parameter -= lr * d. With momentum, one state: state = momentum * state + (1 - dampening) * d, the first
/// time d itself, and parameter -= lr * state (Nesterov: lr * (d + momentum * state)).
struct SGDOptions {
  double lr = 1e-2;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;  ///< Nesterov's momentum, which needs momentum and no dampening.
};
class SGD : public Optimizer {
 public:
  explicit SGD(SGDOptions options = {});
};

/// Two states, the means of d and of d * d, and both corrected for bias:
/// parameter -= lr * mean / (sqrt(mean of squares) + eps). AMSGrad: a third state, the largest mean of
/// squares.
struct AdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
};
class Adam : public Optimizer {
 public:
  explicit Adam(AdamOptions options = {});
};

/// Adam with the weight decay apart from the gradient: parameter *= 1 - lr * weight_decay first.
struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
};
class AdamW : public Optimizer {
 public:
  explicit AdamW(AdamWOptions options = {});
};

/// One state, the sum of d * d: parameter -= lr / (1 + (step - 1) * lr_decay) * d / (sqrt(state) + eps).
struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;  ///< The sum before the first step.
  double eps = 1e-10;
};
class Adagrad : public Optimizer {
 public:
  explicit Adagrad(AdagradOptions options = {});
};

/// States: the mean of d * d; if centered the mean of d; if there is momentum, that.
/// parameter -= lr * d / (sqrt(mean of squares) + eps), centered: of the variance.
struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
};
class RMSprop : public Optimizer {
 public:
  explicit RMSprop(RMSpropOptions options = {});
};

/// Layer-wise adaptive rates (You, Gitman, Ginsburg 2017). One state if there is momentum:
/// state = momentum * state + lr * ratio * d, parameter -= state,
/// ratio = trust * |parameter| / (|gradient| + weight_decay * |parameter| + eps).
/// The ratio is 1 where a norm is 0, and for biases and the parameters of norms.
struct LARSOptions {
  double lr = 0.1;
  double momentum = 0.9;
  double weight_decay = 0;
  double trust = 1e-3;
  double eps = 1e-8;
  bool nesterov = false;  ///< Nesterov's momentum, which needs momentum.
};
class LARS : public Optimizer {
 public:
  explicit LARS(LARSOptions options = {});
};

/// Adam for large batches (You et al. 2019). States as Adam's;
///   update = mean / (sqrt(mean of squares) + eps) + weight_decay * parameter
///   parameter -= lr * ratio * update, ratio = |parameter| / |update|
/// The ratio is 1 where a norm is 0, and for biases and the parameters of norms.
struct LAMBOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-6;
  double weight_decay = 1e-2;
};
class LAMB : public Optimizer {
 public:
  explicit LAMB(LAMBOptions options = {});
};

/// An optimizer of the rows of an embedding table (embedding.h), where only the rows of a batch change: any
/// of those above but LARS and LAMB, which measure whole parameters (InvalidArgument), or FTRL. A row counts
/// its own updates, so that Adam's bias correction knows how often this row has moved; momentum and weight
/// decay, too, move a row only when it is in the batch.
class RowOptimizer {
 public:
  RowOptimizer(const Optimizer& optimizer);  // NOLINT(google-explicit-constructor): where one is expected

  std::string to_string() const;

  /// For Muster's own rooms: what carries it out.
  const std::shared_ptr<const detail::RowRule>& rule() const { return rule_; }

 protected:
  explicit RowOptimizer(std::shared_ptr<const detail::RowRule> rule) : rule_(std::move(rule)) {}

 private:
  std::shared_ptr<const detail::RowRule> rule_;  // shared: nobody changes it
};

/// FTRL-Proximal (McMahan et al. 2013). States: z, and n, the sum of gradient * gradient.
///   z += gradient - (sqrt(n + gradient * gradient) - sqrt(n)) / alpha * row; n += gradient * gradient
///   row = 0 where |z| <= l1, else (sign(z) * l1 - z) / ((beta + sqrt(n)) / alpha + l2)
/// A row's first update begins with the z that gives the row its initial value.
struct FTRLOptions {
  double alpha = 0.05;
  double beta = 1;
  double l1 = 0;
  double l2 = 0;
};
class FTRL : public RowOptimizer {
 public:
  explicit FTRL(FTRLOptions options = {});
};

}  // namespace optim
}  // namespace muster
