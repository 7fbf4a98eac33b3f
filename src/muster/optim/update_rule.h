#pragma once

// How a parameter changes with its gradient: one rule for all parameters of a model, as a single pass over
// ranges of flat memory. A rule has no state of its own: what it remembers of a parameter (momentum, second
// moments) lies in states of the same size as the parameter, which the caller keeps, zeroed at first.
//
//   auto rule = sgd({.lr = 0.05, .momentum = 0.9});                      // rules.h
//   rule->apply({.parameter = w, .gradient = g, .states = {m}, .count = n}, {.step = 1, .lr = rule->lr()});
//
// Ranges may be cut anywhere and updated in any order, by any thread or process: the bits are the same.
// A rule whose step depends on norms of the whole parameter (LARS, LAMB) is applied in two passes: measure()
// over all ranges of the parameter, whose sums are added up in the order of the ranges, then apply() with
// them.
//
// Rules are immutable and thread-safe.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "muster/base/dtype.h"

namespace muster::detail {

/// The most states that any rule has.
constexpr size_t kMostStates = 3;

/// A piece of one parameter. Nothing overlaps.
struct UpdateRange {
  DType dtype = DType::kFloat32;  ///< of all three: float32 or float64
  void* parameter = nullptr;
  const void* gradient = nullptr;
  std::array<void*, kMostStates> states = {};
  size_t count = 0;
};

/// What a group of parameters has otherwise than the rest of the model.
struct GroupRates {
  double lr_factor = 1;                ///< on the learning rate
  std::optional<double> weight_decay;  ///< instead of the rule's own

  bool operator==(const GroupRates&) const = default;
};

/// What holds for one update of one parameter.
struct UpdateNow {
  int64_t step = 1;           ///< how many updates this parameter has had, with this one
  double lr = 0;              ///< the learning rate, after schedules
  double gradient_scale = 1;  ///< the gradient is multiplied by it first: averages, clipping, loss scales
  bool adapt = true;          ///< LARS and LAMB only: false for biases and norms, which keep the plain rate
  std::optional<double> weight_decay;  ///< instead of the rule's own
  /// How many workers' gradients are used one by one, each by an update of its own: damps the momentum.
  int asynchronous = 1;
};

/// What a momentum becomes beside that of N asynchronous workers. Each computes with parameters that the
/// others have changed meanwhile, which acts like a momentum of 1 - 1/N (Mitliagkas et al. 2016); and N
/// updates are made where synchronous workers make one. With 1 - N * (1 - momentum), and not below 0, both
/// together are what the momentum alone is for one worker: 0.9 becomes 0.8 for two, 0.6 for four.
inline double damped_momentum(double momentum, int workers) {
  return workers <= 1 ? momentum : std::max(0.0, 1 - workers * (1 - momentum));
}

/// Sums of squares over a parameter, for the rules that measure.
struct Norms {
  double parameter = 0;
  double update = 0;  ///< of what the rule compares with the parameter: the gradient (LARS), the step (LAMB)

  Norms& operator+=(const Norms& other) {
    parameter += other.parameter;
    update += other.update;
    return *this;
  }
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  virtual const char* name() const = 0;  ///< "sgd", "adam", ...

  /// The rule with all its options, "sgd lr=0.1 momentum=0.9 ...", exactly: parse_rule() (rule_text.h) gives
  /// the same rule in another process.
  virtual std::string to_string() const = 0;

  virtual double lr() const = 0;      ///< the learning rate that it was made with
  virtual size_t states() const = 0;  ///< how many it needs
  virtual bool measures() const { return false; }
  virtual double momentum() const { return 0; }  ///< as damped_momentum() knows it

  /// The first pass of a rule that measures; it may change the states, never the parameter.
  virtual Norms measure(const UpdateRange& /*range*/, const UpdateNow& /*now*/) const { return {}; }

  /// The update. `norms` are those of the whole parameter. Gives whether the gradient was finite; a rule that
  /// measures does not look, and says that it was.
  virtual bool apply(const UpdateRange& range, const UpdateNow& now, const Norms& norms = {}) const = 0;
};

using UpdateRulePtr = std::shared_ptr<const UpdateRule>;  // shared: rules are values that nobody changes

}  // namespace muster::detail
