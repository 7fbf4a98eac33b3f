#include "muster/optim/rules.h"

#include <cmath>

#include "muster/base/error.h"
#include "muster/optim/gradients.h"
#include "muster/optim/rule_text.h"
#include "muster/optim/update_kernels.h"

namespace muster::detail {

namespace {

void require(bool valid, const char* option, double value, const char* expected) {
  if (!valid) raise<InvalidArgument>("{} = {}; expected {}", option, value, expected);
}

void require_not_negative(const char* option, double value) {
  require(value >= 0 && std::isfinite(value), option, value, "a finite number that is not negative");
}

void require_fraction(const char* option, double value) {
  require(value >= 0 && value < 1, option, value, "a number in [0, 1)");
}

void require_nesterov(const char* rule, bool nesterov, double momentum, double dampening) {
  if (nesterov && (momentum == 0 || dampening != 0)) {
    raise<InvalidArgument>(
        "{}.nesterov = true with momentum = {} and dampening = {}; expected a momentum above 0 and no "
        "dampening",
        rule, momentum, dampening);
  }
}

class Rule : public UpdateRule {
 public:
  const char* name() const final { return name_; }
  double lr() const final { return lr_; }
  size_t states() const final { return states_; }

 protected:
  Rule(const char* name, double lr, size_t states) : name_(name), lr_(lr), states_(states) {}

  void check(const UpdateRange& range, const UpdateNow& now) const {
    if (range.dtype != DType::kFloat32 && range.dtype != DType::kFloat64) {
      raise<InvalidArgument>("{}: a parameter of {}; expected float32 or float64", name_,
                             name_of(range.dtype));
    }
    if (now.step < 1) {
      raise<InvalidArgument>("{}: step = {}; expected 1 for a parameter's first update", name_, now.step);
    }
  }

 private:
  const char* const name_;
  const double lr_;
  const size_t states_;
};

class Sgd final : public Rule {
 public:
  explicit Sgd(const optim::SGDOptions& options)
      : Rule("sgd", options.lr, options.momentum > 0 ? 1 : 0), options_(options) {}

  std::string to_string() const override { return rule_text(name(), options_); }
  double momentum() const override { return options_.momentum; }

  bool apply(const UpdateRange& range, const UpdateNow& now, const Norms&) const override {
    check(range, now);
    using Form = SgdStep::Form;
    return update_kernels().sgd(range, {.form = options_.nesterov       ? Form::kNesterov
                                                : options_.momentum > 0 ? Form::kMomentum
                                                                        : Form::kPlain,
                                        .gradient_scale = now.gradient_scale,
                                        .weight_decay = now.weight_decay.value_or(options_.weight_decay),
                                        .momentum = damped_momentum(options_.momentum, now.asynchronous),
                                        .gain = now.step == 1 ? 1 : 1 - options_.dampening,
                                        .lr = now.lr});
  }

 private:
  const optim::SGDOptions options_;
};

double bias(double beta, int64_t step) {
  return 1 - std::pow(beta, static_cast<double>(step));
}

// Adam and AdamW: where the weight decay goes is the only difference.
class Adam final : public Rule {
 public:
  Adam(const char* name, const optim::AdamOptions& options, bool decoupled)
      : Rule(name, options.lr, options.amsgrad ? 3 : 2), options_(options), decoupled_(decoupled) {}

  std::string to_string() const override { return rule_text(name(), options_); }

  bool apply(const UpdateRange& range, const UpdateNow& now, const Norms&) const override {
    check(range, now);
    return update_kernels().adam(
        range, {.amsgrad = options_.amsgrad,
                .gradient_scale = now.gradient_scale,
                .weight_decay = decoupled_ ? 0 : now.weight_decay.value_or(options_.weight_decay),
                .shrink = decoupled_ ? 1 - now.lr * now.weight_decay.value_or(options_.weight_decay) : 1,
                .beta1 = options_.betas[0],
                .beta2 = options_.betas[1],
                .rate = now.lr / bias(options_.betas[0], now.step),
                .root = 1 / std::sqrt(bias(options_.betas[1], now.step)),
                .eps = options_.eps});
  }

 private:
  const optim::AdamOptions options_;
  const bool decoupled_;
};

class Adagrad final : public Rule {
 public:
  explicit Adagrad(const optim::AdagradOptions& options)
      : Rule("adagrad", options.lr, 1), options_(options) {}

  std::string to_string() const override { return rule_text(name(), options_); }

  bool apply(const UpdateRange& range, const UpdateNow& now, const Norms&) const override {
    check(range, now);
    return update_kernels().adagrad(
        range, {.gradient_scale = now.gradient_scale,
                .weight_decay = now.weight_decay.value_or(options_.weight_decay),
                .start = now.step == 1 ? options_.initial_accumulator_value : 0,
                .lr = now.lr / (1 + static_cast<double>(now.step - 1) * options_.lr_decay),
                .eps = options_.eps});
  }

 private:
  const optim::AdagradOptions options_;
};

class RmsProp final : public Rule {
 public:
  explicit RmsProp(const optim::RMSpropOptions& options)
      : Rule("rmsprop", options.lr, 1 + (options.centered ? 1 : 0) + (options.momentum > 0 ? 1 : 0)),
        options_(options) {}

  std::string to_string() const override { return rule_text(name(), options_); }
  double momentum() const override { return options_.momentum; }

  bool apply(const UpdateRange& range, const UpdateNow& now, const Norms&) const override {
    check(range, now);
    return update_kernels().rmsprop(range, {.centered = options_.centered,
                                            .gradient_scale = now.gradient_scale,
                                            .weight_decay = now.weight_decay.value_or(options_.weight_decay),
                                            .alpha = options_.alpha,
                                            .momentum = damped_momentum(options_.momentum, now.asynchronous),
                                            .lr = now.lr,
                                            .eps = options_.eps});
  }

 private:
  const optim::RMSpropOptions options_;
};

class Lars final : public Rule {
 public:
  explicit Lars(const optim::LARSOptions& options)
      : Rule("lars", options.lr, options.momentum > 0 ? 1 : 0), options_(options) {}

  std::string to_string() const override { return rule_text(name(), options_); }
  double momentum() const override { return options_.momentum; }
  bool measures() const override { return true; }

  Norms measure(const UpdateRange& range, const UpdateNow& now) const override {
    check(range, now);
    if (!now.adapt) return {};
    const auto& kernels = update_kernels();
    const double scale = now.gradient_scale;
    return {.parameter = kernels.sum_of_squares(range.dtype, range.parameter, range.count),
            .update = scale * scale * kernels.sum_of_squares(range.dtype, range.gradient, range.count)};
  }

  bool apply(const UpdateRange& range, const UpdateNow& now, const Norms& norms) const override {
    check(range, now);
    const double rate = now.lr * (now.adapt ? ratio(norms, now) : 1);
    SgdStep step = {.gradient_scale = now.gradient_scale,
                    .weight_decay = now.weight_decay.value_or(options_.weight_decay),
                    .lr = rate};
    if (options_.momentum > 0) {
      step.form = options_.nesterov ? SgdStep::Form::kNesterov : SgdStep::Form::kMomentum;
      step.momentum = damped_momentum(options_.momentum, now.asynchronous);
      step.gain = step.ahead = rate;
      step.lr = 1;
    }
    update_kernels().sgd(range, step);
    return true;
  }

 private:
  double ratio(const Norms& norms, const UpdateNow& now) const {
    if (norms.parameter == 0 || norms.update == 0) return 1;
    const double parameter = std::sqrt(norms.parameter);
    return options_.trust * parameter /
           (std::sqrt(norms.update) + now.weight_decay.value_or(options_.weight_decay) * parameter +
            options_.eps);
  }

  const optim::LARSOptions options_;
};

class Lamb final : public Rule {
 public:
  explicit Lamb(const optim::LAMBOptions& options) : Rule("lamb", options.lr, 2), options_(options) {}

  std::string to_string() const override { return rule_text(name(), options_); }
  bool measures() const override { return true; }

  Norms measure(const UpdateRange& range, const UpdateNow& now) const override {
    check(range, now);
    if (!now.adapt) return {};
    return update_kernels().measure_lamb(range, step_of(now));
  }

  bool apply(const UpdateRange& range, const UpdateNow& now, const Norms& norms) const override {
    check(range, now);
    const bool scaled = now.adapt && norms.parameter != 0 && norms.update != 0;
    LambStep step = step_of(now);
    step.advance = !now.adapt;
    step.rate = now.lr * (scaled ? std::sqrt(norms.parameter / norms.update) : 1);
    return update_kernels().apply_lamb(range, step);
  }

 private:
  LambStep step_of(const UpdateNow& now) const {
    return {.gradient_scale = now.gradient_scale,
            .beta1 = options_.betas[0],
            .beta2 = options_.betas[1],
            .correction = 1 / bias(options_.betas[0], now.step),
            .root = 1 / std::sqrt(bias(options_.betas[1], now.step)),
            .eps = options_.eps,
            .weight_decay = now.weight_decay.value_or(options_.weight_decay)};
  }

  const optim::LAMBOptions options_;
};

class Average final : public Rule {
 public:
  Average() : Rule("average", 0, 0) {}

  std::string to_string() const override { return name(); }

  bool apply(const UpdateRange& range, const UpdateNow& now, const Norms&) const override {
    check(range, now);
    const WeightedSource source = {range.gradient, now.gradient_scale};
    add_up(range.dtype, {&source, 1}, range.parameter, range.count);
    return all_finite(range.dtype, range.gradient, range.count);
  }
};

}  // namespace

UpdateRulePtr average() {
  return std::make_shared<Average>();
}

UpdateRulePtr sgd(optim::SGDOptions options) {
  require_not_negative("sgd.lr", options.lr);
  require_fraction("sgd.momentum", options.momentum);
  require(options.dampening >= 0 && options.dampening <= 1, "sgd.dampening", options.dampening,
          "a number in [0, 1]");
  require_not_negative("sgd.weight_decay", options.weight_decay);
  require_nesterov("sgd", options.nesterov, options.momentum, options.dampening);
  return std::make_shared<Sgd>(options);
}

UpdateRulePtr adam(optim::AdamOptions options) {
  require_not_negative("adam.lr", options.lr);
  require_fraction("adam.betas[0]", options.betas[0]);
  require_fraction("adam.betas[1]", options.betas[1]);
  require_not_negative("adam.eps", options.eps);
  require_not_negative("adam.weight_decay", options.weight_decay);
  return std::make_shared<Adam>("adam", options, false);
}

UpdateRulePtr adamw(optim::AdamWOptions options) {
  require_not_negative("adamw.lr", options.lr);
  require_fraction("adamw.betas[0]", options.betas[0]);
  require_fraction("adamw.betas[1]", options.betas[1]);
  require_not_negative("adamw.eps", options.eps);
  require_not_negative("adamw.weight_decay", options.weight_decay);
  return std::make_shared<Adam>("adamw",
                                optim::AdamOptions{.lr = options.lr,
                                                   .betas = options.betas,
                                                   .eps = options.eps,
                                                   .weight_decay = options.weight_decay,
                                                   .amsgrad = options.amsgrad},
                                true);
}

UpdateRulePtr adagrad(optim::AdagradOptions options) {
  require_not_negative("adagrad.lr", options.lr);
  require_not_negative("adagrad.lr_decay", options.lr_decay);
  require_not_negative("adagrad.weight_decay", options.weight_decay);
  require_not_negative("adagrad.initial_accumulator_value", options.initial_accumulator_value);
  require_not_negative("adagrad.eps", options.eps);
  return std::make_shared<Adagrad>(options);
}

UpdateRulePtr rmsprop(optim::RMSpropOptions options) {
  require_not_negative("rmsprop.lr", options.lr);
  require_fraction("rmsprop.alpha", options.alpha);
  require_not_negative("rmsprop.eps", options.eps);
  require_not_negative("rmsprop.weight_decay", options.weight_decay);
  require_fraction("rmsprop.momentum", options.momentum);
  return std::make_shared<RmsProp>(options);
}

UpdateRulePtr lars(optim::LARSOptions options) {
  require_not_negative("lars.lr", options.lr);
  require_fraction("lars.momentum", options.momentum);
  require_not_negative("lars.weight_decay", options.weight_decay);
  require(options.trust > 0 && std::isfinite(options.trust), "lars.trust", options.trust,
          "a finite number above 0");
  require_not_negative("lars.eps", options.eps);
  require_nesterov("lars", options.nesterov, options.momentum, 0);
  return std::make_shared<Lars>(options);
}

UpdateRulePtr lamb(optim::LAMBOptions options) {
  require_not_negative("lamb.lr", options.lr);
  require_fraction("lamb.betas[0]", options.betas[0]);
  require_fraction("lamb.betas[1]", options.betas[1]);
  require_not_negative("lamb.eps", options.eps);
  require_not_negative("lamb.weight_decay", options.weight_decay);
  return std::make_shared<Lamb>(options);
}

}  // namespace muster::detail
