#pragma once

// What the loss is multiplied by, so that small 16-bit gradients do not vanish: halved when a gradient was
// not finite, doubled after many steps in which all were. A value: not thread-safe, nothing blocks or throws.

#include <algorithm>
#include <cstdint>

namespace muster::detail {

class LossScale {
 public:
  /// 0: the loss is not scaled.
  explicit LossScale(double first = 0) : value_(first) {}

  double value() const { return value_; }
  bool is_used() const { return value_ > 0; }
  bool can_shrink() const { return value_ > kSmallest; }

  /// After each step: whether its gradients were finite.
  void adjust(bool finite) {
    if (!is_used()) return;
    if (!finite) {
      value_ = std::max(value_ / 2, kSmallest);
      steps_ = 0;
    } else if (++steps_ == kStepsBeforeItGrows) {
      value_ *= 2;
      steps_ = 0;
    }
  }

 private:
  static constexpr double kSmallest = 1;
  static constexpr int64_t kStepsBeforeItGrows = 2000;

  double value_ = 0;
  int64_t steps_ = 0;  // with this value
};

}  // namespace muster::detail
