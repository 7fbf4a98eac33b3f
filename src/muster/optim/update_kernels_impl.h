// The kernels, compiled once for each instruction set by update_kernels_portable.cc, update_kernels_avx2.cc
// and update_kernels_avx512.cc. Everything is in an unnamed namespace and always optimised, so that library
// functions are inlined: the linker must not take one that was compiled for one processor into another's
// path.

#include <cstddef>

#include "muster/optim/gradient_kernels_impl.h"
#include "muster/optim/update_kernels.h"

namespace muster::detail {
namespace {

float root_of(float value) {
  return __builtin_sqrtf(value);
}
double root_of(double value) {
  return __builtin_sqrt(value);
}

template <bool value>
struct Flag {
  static constexpr bool kValue = value;
};

// What is known of a step before the loop is known in the loop: body(Flag<...>{}).
template <typename Body>
bool with_flag(bool flag, const Body& body) {
  return flag ? body(Flag<true>{}) : body(Flag<false>{});
}

template <typename T>
struct Arrays {
  explicit Arrays(const UpdateRange& range)
      : parameter(static_cast<T*>(range.parameter)),
        gradient(static_cast<const T*>(range.gradient)),
        states{static_cast<T*>(range.states[0]), static_cast<T*>(range.states[1]),
               static_cast<T*>(range.states[2])},
        count(range.count) {}

  T* parameter;
  const T* gradient;
  T* states[kMostStates];
  size_t count;
};

// The scaled gradient with its weight decay, if any: what the headers call d. It notes what is not finite,
// for which a loop that waits for memory has the time.
template <typename T, bool kDecay>
struct Direction {
  template <typename Step>
  explicit Direction(const Step& step)
      : scale(static_cast<T>(step.gradient_scale)), decay(static_cast<T>(step.weight_decay)) {}

  T of(T gradient, T parameter) {
    exponents.add(gradient);
    const T scaled = scale * gradient;
    if constexpr (kDecay) {
      return scaled + decay * parameter;
    } else {
      return scaled;
    }
  }

  T scale;
  T decay;
  Exponents<T> exponents;
};

template <typename T, bool kDecay>
bool sgd_plain(const Arrays<T>& arrays, const SgdStep& step) {
  const auto [parameter, gradient, states, count] = arrays;
  Direction<T, kDecay> direction(step);
  const auto lr = static_cast<T>(step.lr);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    parameter[i] = parameter[i] - lr * direction.of(gradient[i], parameter[i]);
  }
  return direction.exponents.all_finite();
}

template <typename T, bool kDecay, bool kNesterov>
bool sgd_momentum(const Arrays<T>& arrays, const SgdStep& step) {
  const auto [parameter, gradient, states, count] = arrays;
  T* const velocity = states[0];
  Direction<T, kDecay> direction(step);
  const auto momentum = static_cast<T>(step.momentum);
  const auto gain = static_cast<T>(step.gain);
  const auto ahead = static_cast<T>(step.ahead);
  const auto lr = static_cast<T>(step.lr);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const T d = direction.of(gradient[i], parameter[i]);
    const T moved = momentum * velocity[i] + gain * d;
    velocity[i] = moved;
    if constexpr (kNesterov) {
      parameter[i] = parameter[i] - lr * (ahead * d + momentum * moved);
    } else {
      parameter[i] = parameter[i] - lr * moved;
    }
  }
  return direction.exponents.all_finite();
}

template <typename T, bool kDecay, bool kAmsgrad>
bool adam_as(const Arrays<T>& arrays, const AdamStep& step) {
  const auto [parameter, gradient, states, count] = arrays;
  T* const first = states[0];
  T* const second = states[1];
  T* const largest = states[2];
  Direction<T, kDecay> direction(step);
  const auto beta1 = static_cast<T>(step.beta1);
  const auto beta2 = static_cast<T>(step.beta2);
  const auto gain1 = static_cast<T>(1 - step.beta1);
  const auto gain2 = static_cast<T>(1 - step.beta2);
  const auto shrink = static_cast<T>(step.shrink);
  const auto rate = static_cast<T>(step.rate);
  const auto root = static_cast<T>(step.root);
  const auto eps = static_cast<T>(step.eps);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const T d = direction.of(gradient[i], parameter[i]);
    const T m = beta1 * first[i] + gain1 * d;
    const T v = beta2 * second[i] + gain2 * (d * d);
    first[i] = m;
    second[i] = v;
    T bound = v;
    if constexpr (kAmsgrad) {
      bound = largest[i] >= v ? largest[i] : v;  // a NaN wins
      largest[i] = bound;
    }
    parameter[i] = shrink * parameter[i] - rate * m / (root * root_of(bound) + eps);
  }
  return direction.exponents.all_finite();
}

template <typename T, bool kDecay>
bool adagrad_as(const Arrays<T>& arrays, const AdagradStep& step) {
  const auto [parameter, gradient, states, count] = arrays;
  T* const sum = states[0];
  Direction<T, kDecay> direction(step);
  const auto start = static_cast<T>(step.start);
  const auto lr = static_cast<T>(step.lr);
  const auto eps = static_cast<T>(step.eps);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const T d = direction.of(gradient[i], parameter[i]);
    const T squares = sum[i] + start + d * d;
    sum[i] = squares;
    parameter[i] = parameter[i] - lr * d / (root_of(squares) + eps);
  }
  return direction.exponents.all_finite();
}

template <typename T, bool kDecay, bool kCentered, bool kMomentum>
bool rmsprop_as(const Arrays<T>& arrays, const RmsPropStep& step) {
  const auto [parameter, gradient, states, count] = arrays;
  T* const mean_square = states[0];
  T* const mean = states[1];
  T* const velocity = states[kCentered ? 2 : 1];
  Direction<T, kDecay> direction(step);
  const auto alpha = static_cast<T>(step.alpha);
  const auto gain = static_cast<T>(1 - step.alpha);
  const auto momentum = static_cast<T>(step.momentum);
  const auto lr = static_cast<T>(step.lr);
  const auto eps = static_cast<T>(step.eps);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const T d = direction.of(gradient[i], parameter[i]);
    T spread = alpha * mean_square[i] + gain * (d * d);
    mean_square[i] = spread;
    if constexpr (kCentered) {
      const T m = alpha * mean[i] + gain * d;
      mean[i] = m;
      spread = spread - m * m;
      spread = spread < 0 ? 0 : spread;  // by rounding, for gradients that hardly change
    }
    const T denominator = root_of(spread) + eps;
    if constexpr (kMomentum) {
      const T moved = momentum * velocity[i] + d / denominator;
      velocity[i] = moved;
      parameter[i] = parameter[i] - lr * moved;
    } else {
      parameter[i] = parameter[i] - lr * d / denominator;
    }
  }
  return direction.exponents.all_finite();
}

// LAMB's step before its trust ratio: of the moments that the states have, or of those that follow.
template <typename T, bool kAdvance>
struct LambUpdate {
  explicit LambUpdate(const LambStep& step)
      : scale(static_cast<T>(step.gradient_scale)),
        beta1(static_cast<T>(step.beta1)),
        beta2(static_cast<T>(step.beta2)),
        gain1(static_cast<T>(1 - step.beta1)),
        gain2(static_cast<T>(1 - step.beta2)),
        correction(static_cast<T>(step.correction)),
        root(static_cast<T>(step.root)),
        eps(static_cast<T>(step.eps)),
        decay(static_cast<T>(step.weight_decay)) {}

  T of(const Arrays<T>& arrays, size_t i) const {
    T m = arrays.states[0][i];
    T v = arrays.states[1][i];
    if constexpr (kAdvance) {
      const T d = scale * arrays.gradient[i];
      m = beta1 * m + gain1 * d;
      v = beta2 * v + gain2 * (d * d);
      arrays.states[0][i] = m;
      arrays.states[1][i] = v;
    }
    return correction * m / (root * root_of(v) + eps) + decay * arrays.parameter[i];
  }

  T scale, beta1, beta2, gain1, gain2, correction, root, eps, decay;
};

template <typename T>
Norms measure_lamb_as(const Arrays<T>& arrays, const LambStep& step) {
  const Arrays<T> all = arrays;  // a copy, which the stores below can't change
  const LambUpdate<T, true> update(step);
  alignas(64) T updates[kTile];
  SquareSum of_parameter;
  SquareSum of_update;
  for (size_t at = 0; at < all.count; at += kTile) {
    const size_t size = all.count - at < kTile ? all.count - at : kTile;
#pragma GCC ivdep
    for (size_t i = 0; i < size; ++i) updates[i] = update.of(all, at + i);
    of_parameter.add(all.parameter + at, size);
    of_update.add(updates, size);
  }
  return {.parameter = of_parameter.total(), .update = of_update.total()};
}

template <typename T, bool kAdvance>
bool apply_lamb_as(const Arrays<T>& arrays, const LambStep& step) {
  const Arrays<T> all = arrays;
  const LambUpdate<T, kAdvance> update(step);
  const auto rate = static_cast<T>(step.rate);
#pragma GCC ivdep
  for (size_t i = 0; i < all.count; ++i) {
    all.parameter[i] = all.parameter[i] - rate * update.of(all, i);
  }
  return true;
}

// body(arrays of the range's type)
template <typename Body>
auto with_arrays(const UpdateRange& range, const Body& body) {
  return range.dtype == DType::kFloat64 ? body(Arrays<double>(range)) : body(Arrays<float>(range));
}

template <typename T>
bool sgd_of(const Arrays<T>& arrays, const SgdStep& step) {
  return with_flag(step.weight_decay != 0, [&]<bool kDecay>(Flag<kDecay>) {
    switch (step.form) {
      case SgdStep::Form::kMomentum:
        return sgd_momentum<T, kDecay, false>(arrays, step);
      case SgdStep::Form::kNesterov:
        return sgd_momentum<T, kDecay, true>(arrays, step);
      default:
        return sgd_plain<T, kDecay>(arrays, step);
    }
  });
}

bool sgd_kernel(const UpdateRange& range, const SgdStep& step) {
  return with_arrays(range, [&]<typename T>(const Arrays<T>& arrays) { return sgd_of(arrays, step); });
}

bool adam_kernel(const UpdateRange& range, const AdamStep& step) {
  return with_arrays(range, [&]<typename T>(const Arrays<T>& arrays) {
    return with_flag(step.weight_decay != 0, [&]<bool kDecay>(Flag<kDecay>) {
      return with_flag(step.amsgrad, [&]<bool kAmsgrad>(Flag<kAmsgrad>) {
        return adam_as<T, kDecay, kAmsgrad>(arrays, step);
      });
    });
  });
}

bool adagrad_kernel(const UpdateRange& range, const AdagradStep& step) {
  return with_arrays(range, [&]<typename T>(const Arrays<T>& arrays) {
    return with_flag(step.weight_decay != 0,
                     [&]<bool kDecay>(Flag<kDecay>) { return adagrad_as<T, kDecay>(arrays, step); });
  });
}

template <typename T, bool kDecay>
bool rmsprop_of(const Arrays<T>& arrays, const RmsPropStep& step) {
  return with_flag(step.centered, [&]<bool kCentered>(Flag<kCentered>) {
    return with_flag(step.momentum != 0, [&]<bool kMomentum>(Flag<kMomentum>) {
      return rmsprop_as<T, kDecay, kCentered, kMomentum>(arrays, step);
    });
  });
}

bool rmsprop_kernel(const UpdateRange& range, const RmsPropStep& step) {
  return with_arrays(range, [&]<typename T>(const Arrays<T>& arrays) {
    return with_flag(step.weight_decay != 0,
                     [&]<bool kDecay>(Flag<kDecay>) { return rmsprop_of<T, kDecay>(arrays, step); });
  });
}

Norms measure_lamb(const UpdateRange& range, const LambStep& step) {
  return with_arrays(range,
                     [&]<typename T>(const Arrays<T>& arrays) { return measure_lamb_as(arrays, step); });
}

bool apply_lamb(const UpdateRange& range, const LambStep& step) {
  return with_arrays(range, [&]<typename T>(const Arrays<T>& arrays) {
    return with_flag(step.advance,
                     [&]<bool kAdvance>(Flag<kAdvance>) { return apply_lamb_as<T, kAdvance>(arrays, step); });
  });
}

constexpr UpdateKernels make_kernels(const char* name) {
  return {.sgd = sgd_kernel,
          .adam = adam_kernel,
          .adagrad = adagrad_kernel,
          .rmsprop = rmsprop_kernel,
          .measure_lamb = measure_lamb,
          .apply_lamb = apply_lamb,
          .add_up = add_up_kernel,
          .sum_of_squares = sum_of_squares_kernel,
          .all_finite = all_finite_kernel,
          .name = name};
}

}  // namespace
}  // namespace muster::detail
