#pragma once

// The loops behind the update rules and the sums of gradients. Three builds of the same code, for AVX-512,
// AVX2 and any processor, give the same bits; the best that this machine has is chosen at run time.
//
// A step holds the numbers of one update, worked out in double by the rules; a kernel converts each once to
// the type of the elements. Ranges are float32 or float64. Every array is read and written once. Without
// state: any thread may call them.

#include <cstddef>
#include <span>

#include "muster/base/cpu.h"
#include "muster/optim/gradients.h"
#include "muster/optim/update_rule.h"

namespace muster::detail {

/// d = gradient_scale * gradient + weight_decay * parameter; then, by the form:
///   plain      parameter -= lr * d
///   momentum   state = momentum * state + gain * d; parameter -= lr * state
///   Nesterov   state likewise; parameter -= lr * (ahead * d + momentum * state)
struct SgdStep {
  enum class Form { kPlain, kMomentum, kNesterov };

  Form form = Form::kPlain;
  double gradient_scale = 1;
  double weight_decay = 0;
  double momentum = 0;
  double gain = 1;
  double ahead = 1;
  double lr = 0;
};

/// d as above; moments m and v of d and d * d; parameter = shrink * parameter - rate * m / (root * sqrt(v) +
/// eps). AMSGrad takes the largest v so far, in the third state.
struct AdamStep {
  bool amsgrad = false;
  double gradient_scale = 1;
  double weight_decay = 0;
  double shrink = 1;
  double beta1 = 0;
  double beta2 = 0;
  double rate = 0;
  double root = 1;
  double eps = 0;
};

/// d as above; state = state + start + d * d; parameter -= lr * d / (sqrt(state) + eps).
struct AdagradStep {
  double gradient_scale = 1;
  double weight_decay = 0;
  double start = 0;
  double lr = 0;
  double eps = 0;
};

/// States: the mean square, then the mean if centered, then the momentum if there is one.
struct RmsPropStep {
  bool centered = false;
  double gradient_scale = 1;
  double weight_decay = 0;
  double alpha = 0;
  double momentum = 0;
  double lr = 0;
  double eps = 0;
};

/// u = correction * m / (root * sqrt(v) + eps) + weight_decay * parameter; parameter -= rate * u.
struct LambStep {
  bool advance = false;  ///< apply_lamb: the moments too, which measure_lamb always advances
  double gradient_scale = 1;
  double beta1 = 0;
  double beta2 = 0;
  double correction = 1;
  double root = 1;
  double eps = 0;
  double weight_decay = 0;
  double rate = 0;
};

/// Those that update say whether the gradient was finite, but for LAMB's, which does not look.
struct UpdateKernels {
  bool (*sgd)(const UpdateRange& range, const SgdStep& step);
  bool (*adam)(const UpdateRange& range, const AdamStep& step);
  bool (*adagrad)(const UpdateRange& range, const AdagradStep& step);
  bool (*rmsprop)(const UpdateRange& range, const RmsPropStep& step);
  Norms (*measure_lamb)(const UpdateRange& range, const LambStep& step);
  bool (*apply_lamb)(const UpdateRange& range, const LambStep& step);

  /// As in gradients.h.
  void (*add_up)(DType dtype, std::span<const WeightedSource> sources, void* sum, size_t count);
  double (*sum_of_squares)(DType dtype, const void* data, size_t count);
  bool (*all_finite)(DType dtype, const void* data, size_t count);

  const char* name;
};

/// The best set for this machine.
const UpdateKernels& update_kernels();

/// A particular one; nullptr when this machine or this build does not have it.
const UpdateKernels* update_kernels_of(KernelSet set);

}  // namespace muster::detail
