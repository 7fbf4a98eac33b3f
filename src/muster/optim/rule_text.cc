#include "muster/optim/rule_text.h"

#include <charconv>
#include <concepts>
#include <iterator>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

template <typename Visitor>
void visit(optim::SGDOptions& options, Visitor& visitor) {
  visitor("lr", options.lr);
  visitor("momentum", options.momentum);
  visitor("dampening", options.dampening);
  visitor("weight_decay", options.weight_decay);
  visitor("nesterov", options.nesterov);
}

template <typename Options, typename Visitor>
requires std::same_as<Options, optim::AdamOptions> || std::same_as<Options, optim::AdamWOptions>
void visit(Options& options, Visitor& visitor) {
  visitor("lr", options.lr);
  visitor("beta1", options.betas[0]);
  visitor("beta2", options.betas[1]);
  visitor("eps", options.eps);
  visitor("weight_decay", options.weight_decay);
  visitor("amsgrad", options.amsgrad);
}

template <typename Visitor>
void visit(optim::AdagradOptions& options, Visitor& visitor) {
  visitor("lr", options.lr);
  visitor("lr_decay", options.lr_decay);
  visitor("weight_decay", options.weight_decay);
  visitor("initial_accumulator_value", options.initial_accumulator_value);
  visitor("eps", options.eps);
}

template <typename Visitor>
void visit(optim::RMSpropOptions& options, Visitor& visitor) {
  visitor("lr", options.lr);
  visitor("alpha", options.alpha);
  visitor("eps", options.eps);
  visitor("weight_decay", options.weight_decay);
  visitor("momentum", options.momentum);
  visitor("centered", options.centered);
}

template <typename Visitor>
void visit(optim::LARSOptions& options, Visitor& visitor) {
  visitor("lr", options.lr);
  visitor("momentum", options.momentum);
  visitor("weight_decay", options.weight_decay);
  visitor("trust", options.trust);
  visitor("eps", options.eps);
  visitor("nesterov", options.nesterov);
}

template <typename Visitor>
void visit(optim::LAMBOptions& options, Visitor& visitor) {
  visitor("lr", options.lr);
  visitor("beta1", options.betas[0]);
  visitor("beta2", options.betas[1]);
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

std::string rule_text(const char* name, const optim::SGDOptions& options) {
  return write(name, options);
}
std::string rule_text(const char* name, const optim::AdamOptions& options) {
  return write(name, options);
}
std::string rule_text(const char* name, const optim::AdagradOptions& options) {
  return write(name, options);
}
std::string rule_text(const char* name, const optim::RMSpropOptions& options) {
  return write(name, options);
}
std::string rule_text(const char* name, const optim::LARSOptions& options) {
  return write(name, options);
}
std::string rule_text(const char* name, const optim::LAMBOptions& options) {
  return write(name, options);
}

UpdateRulePtr parse_rule(const std::string& text) {
  const std::string name = text.substr(0, text.find(' '));
  if (name == "sgd") return sgd(read<optim::SGDOptions>(text));
  if (name == "adam") return adam(read<optim::AdamOptions>(text));
  if (name == "adamw") return adamw(read<optim::AdamWOptions>(text));
  if (name == "adagrad") return adagrad(read<optim::AdagradOptions>(text));
  if (name == "rmsprop") return rmsprop(read<optim::RMSpropOptions>(text));
  if (name == "lars") return lars(read<optim::LARSOptions>(text));
  if (name == "lamb") return lamb(read<optim::LAMBOptions>(text));
  raise<InvalidArgument>(
      "'{}' is not an update rule; expected sgd, adam, adamw, adagrad, rmsprop, lars or lamb, and its "
      "options",
      text);
}

}  // namespace muster::detail
