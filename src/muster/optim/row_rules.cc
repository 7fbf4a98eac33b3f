#include "muster/optim/row_rules.h"

#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "muster/base/copy.h"
#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/optim/rule_text.h"

namespace muster::detail {
namespace {

class ByRow final : public RowRule {
 public:
  explicit ByRow(UpdateRulePtr rule) : rule_(std::move(rule)) {}

  size_t states() const override { return rule_->states(); }
  std::string to_string() const override { return rule_->to_string(); }

  void apply(const Row& row, const float* gradient, int64_t update) const override {
    UpdateRange range = {.parameter = row.values, .gradient = gradient, .count = row.width};
    for (size_t i = 0; i < rule_->states(); ++i) range.states[i] = row.states + i * row.width;
    rule_->apply(range, {.step = update, .lr = rule_->lr()});
  }

 private:
  const UpdateRulePtr rule_;
};

class Ftrl final : public RowRule {
 public:
  explicit Ftrl(const optim::FTRLOptions& options)
      : options_(options),
        rate_(static_cast<float>(1 / options.alpha)),
        l1_(static_cast<float>(options.l1)),
        base_(static_cast<float>(options.beta / options.alpha + options.l2)) {}

  size_t states() const override { return 2; }

  std::string to_string() const override {
    return fmt::format("ftrl alpha={} beta={} l1={} l2={}", options_.alpha, options_.beta, options_.l1,
                       options_.l2);
  }

  void apply(const Row& row, const float* gradient, int64_t update) const override {
    float* const z = row.states;
    float* const n = row.states + row.width;
    for (size_t i = 0; i < row.width; ++i) {
      const float value = row.values[i];
      if (update == 1 && value != 0) z[i] = -(value * base_ + std::copysign(l1_, value));
      const float squares = n[i] + gradient[i] * gradient[i];
      const float root = std::sqrt(squares);
      z[i] += gradient[i] - (root - std::sqrt(n[i])) * rate_ * value;
      n[i] = squares;
      const float beyond = std::abs(z[i]) - l1_;
      // A NaN is not hidden.
      row.values[i] = beyond <= 0 ? 0 : -std::copysign(beyond, z[i]) / (base_ + root * rate_);
    }
  }

 private:
  const optim::FTRLOptions options_;
  const float rate_;  // 1 / alpha
  const float l1_;
  const float base_;  // what the denominator is for n = 0
};

class Assign final : public RowRule {
 public:
  size_t states() const override { return 0; }
  std::string to_string() const override { return "assign"; }
  void apply(const Row& row, const float* gradient, int64_t /*update*/) const override {
    copy_bytes(row.values, gradient, row.width * sizeof(float));
  }
};

optim::FTRLOptions parse_ftrl(const std::string& text) {
  const auto words = split(text, ' ');
  optim::FTRLOptions options;
  size_t next = 1;
  const auto read = [&](std::string_view name, double& option) {
    const std::string_view word = next < words.size() ? words[next] : std::string_view();
    const size_t equals = word.find('=');
    const auto value = equals == word.npos ? std::nullopt : parse_real(word.substr(equals + 1));
    if (!value || word.substr(0, equals) != name)
      raise<InvalidArgument>("'{}' is not a row rule: '{}' stands where {}=NUMBER is expected", text, word,
                             name);
    option = *value;
    ++next;
  };
  read("alpha", options.alpha);
  read("beta", options.beta);
  read("l1", options.l1);
  read("l2", options.l2);
  if (next < words.size())
    raise<InvalidArgument>("'{}' is not a row rule: nothing is expected behind l2", text);
  return options;
}

}  // namespace

RowRulePtr row_rule(UpdateRulePtr rule) {
  if (rule->measures())
    raise<InvalidArgument>("{} measures whole parameters, and can't update single rows", rule->name());
  return std::make_shared<ByRow>(std::move(rule));
}

RowRulePtr ftrl(optim::FTRLOptions options) {
  if (!(options.alpha > 0) || !std::isfinite(options.alpha))
    raise<InvalidArgument>("ftrl.alpha = {}; expected a finite number above 0", options.alpha);
  const auto not_negative = [](const char* name, double value) {
    if (!(value >= 0) || !std::isfinite(value))
      raise<InvalidArgument>("ftrl.{} = {}; expected a finite number that is not negative", name, value);
  };
  not_negative("beta", options.beta);
  not_negative("l1", options.l1);
  not_negative("l2", options.l2);
  return std::make_shared<Ftrl>(options);
}

RowRulePtr assign() {
  return std::make_shared<Assign>();
}

RowRulePtr parse_row_rule(const std::string& text) {
  if (text == "assign") return assign();
  if (text.starts_with("ftrl ")) return ftrl(parse_ftrl(text));
  return row_rule(parse_rule(text));
}

}  // namespace muster::detail
