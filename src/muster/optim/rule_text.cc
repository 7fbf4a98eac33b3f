#include "muster/optim/rule_text.h"

#include <charconv>
#include <concepts>
#include <iterator>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster {
namespace {

template <typename Visitor>
void visit(SgdOptions& options, Visitor& visitor) {
  visitor("lr", options.lr);
  visitor("momentum", options.momentum);
  visitor("dampening", options.dampening);
  visitor("weight_decay", options.weight_decay);
  visitor("nesterov", options.nesterov);
}

template <typename Options, typename Visitor>
requires std::same_as<Options, AdamOptions> || std::same_as<Options, AdamWOptions>
void visit(Options& options, Visitor& visitor) {
  visitor("lr", options.lr);
  visitor("beta1", options.beta1);
  visitor("beta2", options.beta2);
  visitor("eps", options.eps);
  visitor("weight_decay", options.weight_decay);
  visitor("amsgrad", options.amsgrad);
}

template <typename Visitor>
void visit(AdagradOptions& options, Visitor& visitor) {
  visitor("lr", options.lr);
  visitor("lr_decay", options.lr_decay);
  visitor("weight_decay", options.weight_decay);
  visitor("initial_accumulator_value", options.initial_accumulator_value);
  visitor("eps", options.eps);
}

template <typename Visitor>
void visit(RmsPropOptions& options, Visitor& visitor) {
  visitor("lr", options.lr);
  visitor("alpha", options.alpha);
  visitor("eps", options.eps);
  visitor("weight_decay", options.weight_decay);
  visitor("momentum", options.momentum);
  visitor("centered", options.centered);
}

template <typename Visitor>
void visit(LarsOptions& options, Visitor& visitor) {
  visitor("lr", options.lr);
  visitor("momentum", options.momentum);
  visitor("weight_decay", options.weight_decay);
  visitor("trust", options.trust);
  visitor("eps", options.eps);
  visitor("nesterov", options.nesterov);
}

template <typename Visitor>
void visit(LambOptions& options, Visitor& visitor) {
  visitor("lr", options.lr);
  visitor("beta1", options.beta1);
  visitor("beta2", options.beta2);
  visitor("eps", options.eps);
  visitor("weight_decay", options.weight_decay);
}

// {} prints a double in as few digits as read back to the same bits.
template <typename Options>
std::string write(const char* name, Options options) {
  std::string text = name;
  auto visitor = [&](const char* option, auto value) {
    fmt::format_to(std::back_inserter(text), " {}={}", option, value);
  };
  visit(options, visitor);
  return text;
}

bool read_value(std::string_view text, double& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

bool read_value(std::string_view text, bool& value) {
  value = text == "true";
  return value || text == "false";
}

template <typename Options>
Options read(const std::string& text) {
  const std::vector<std::string> words = split(text, ' ');
  size_t next = 1;
  Options options;
  auto visitor = [&](std::string_view option, auto& value) {
    const std::string_view word = next < words.size() ? words[next] : std::string_view();
    const size_t equals = word.find('=');
    if (word.substr(0, equals) != option || equals == word.npos ||
        !read_value(word.substr(equals + 1), value)) {
      raise<InvalidArgument>("'{}' is not an update rule: '{}' stands where {}=VALUE is expected", text, word,
                             option);
    }
    ++next;
  };
  visit(options, visitor);
  if (next < words.size()) {
    raise<InvalidArgument>("'{}' is not an update rule: nothing is expected behind {}", text,
                           words[next - 1]);
  }
  return options;
}

}  // namespace

std::string rule_text(const char* name, const SgdOptions& options) {
  return write(name, options);
}
std::string rule_text(const char* name, const AdamOptions& options) {
  return write(name, options);
}
std::string rule_text(const char* name, const AdagradOptions& options) {
  return write(name, options);
}
std::string rule_text(const char* name, const RmsPropOptions& options) {
  return write(name, options);
}
std::string rule_text(const char* name, const LarsOptions& options) {
  return write(name, options);
}
std::string rule_text(const char* name, const LambOptions& options) {
  return write(name, options);
}

UpdateRulePtr parse_rule(const std::string& text) {
  const std::string name = text.substr(0, text.find(' '));
  if (name == "sgd") return sgd(read<SgdOptions>(text));
  if (name == "adam") return adam(read<AdamOptions>(text));
  if (name == "adamw") return adamw(read<AdamWOptions>(text));
  if (name == "adagrad") return adagrad(read<AdagradOptions>(text));
  if (name == "rmsprop") return rmsprop(read<RmsPropOptions>(text));
  if (name == "lars") return lars(read<LarsOptions>(text));
  if (name == "lamb") return lamb(read<LambOptions>(text));
  raise<InvalidArgument>(
      "'{}' is not an update rule; expected sgd, adam, adamw, adagrad, rmsprop, lars or lamb, and its "
      "options",
      text);
}

}  // namespace muster
