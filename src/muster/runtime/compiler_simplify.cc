// The part of the compiler that finds what need not be computed in each run: what depends on constants alone,
// and what is written twice.

#include <string>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>

#include "muster/base/error.h"
#include "muster/runtime/compiler.h"

namespace muster::detail {

namespace {

// A constant that is worked out beforehand is kept as long as the program; more than this is not.
constexpr int64_t kMostFolded = 10 << 20;

bool is_pure(const GraphNode& node) {
  return node.op->kind() == OperatorKind::kLibtorch && node.op->is_pure();
}

void append(std::string& key, const void* bytes, size_t size) {
  key.append(static_cast<const char*>(bytes), size);
}

// Adds a value to a key that tells values apart; false where it can't.
bool append_value(std::string& key, const c10::IValue& value) {
  if (value.isNone()) {
    key += 'n';
  } else if (value.isInt()) {
    const int64_t number = value.toInt();
    key += 'i';
    append(key, &number, sizeof number);
  } else if (value.isDouble()) {
    const double number = value.toDouble();
    key += 'd';
    append(key, &number, sizeof number);
  } else if (value.isBool()) {
    key += value.toBool() ? 't' : 'f';
  } else if (value.isString()) {
    key += 's';
    key += std::to_string(value.toStringRef().size()) + ':' + value.toStringRef();
  } else if (value.isIntList()) {
    const auto list = value.toIntVector();
    key += 'l' + std::to_string(list.size()) + ':';
    append(key, list.data(), list.size() * sizeof(int64_t));
  } else {
    return false;
  }
  return true;
}

}  // namespace

bool Compiler::is_constant(const Output& output) const {
  return !is_fed(output) &&
         (output.get()->op->kind() == OperatorKind::kConstant || constants_.contains(output.get()->id));
}

std::optional<std::vector<c10::IValue>> Compiler::folded(const GraphNode& node) const {
  for (const auto& input : inputs_of(node)) {
    if (!is_constant(input)) return std::nullopt;
  }
  for (const auto& output : node.outputs) {
    if (output.type->kind() != c10::TypeKind::TensorType) continue;
    if (!output.dtype || !output.shape.known()) return std::nullopt;
    int64_t bytes = static_cast<int64_t>(c10::elementSize(*output.dtype));
    for (const auto& size : output.shape.sizes()) bytes *= size.fixed;
    if (bytes > kMostFolded) return std::nullopt;
  }
  const auto value_of = [this](const Output& output) -> c10::IValue {
    if (!output.defined()) return {};
    const auto found = constants_.find(output.get()->id);
    return found == constants_.end() ? output.get()->arguments[0].value()
                                     : found->second[static_cast<size_t>(output.index())];
  };
  torch::jit::Stack stack;
  const auto& formals = node.op->schema().arguments();
  for (size_t i = 0; i < formals.size(); ++i) {
    const Argument& argument = node.arguments[i];
    if (argument.is_list()) {
      c10::TypePtr type = formals[i].type();
      if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
      c10::impl::GenericList list(type->expectRef<c10::ListType>().getElementType());
      for (const auto& output : argument.outputs()) list.push_back(value_of(output));
      stack.emplace_back(std::move(list));
    } else {
      stack.push_back(argument.is_value() ? argument.value() : value_of(argument.outputs().front()));
    }
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  try {
    node.op->call(stack);
  } catch (const std::exception&) {
    return std::nullopt;  // it fails when it runs, with its name
  }
  if (stack.size() != node.outputs.size()) return std::nullopt;
  return stack;
}

// A text that is the same for nodes that compute the same.
std::optional<std::string> Compiler::expression(const GraphNode& node) const {
  std::string key = node.op->name();
  const auto append_output = [&key, this](const Output& output) {
    if (!output.defined()) {
      key += 'u';
      return;
    }
    const auto same = same_.find(output.get()->id);
    const int64_t id = is_fed(output) || same == same_.end() ? output.get()->id : same->second->id;
    const int index = output.index();
    key += 'o';
    append(key, &id, sizeof id);
    append(key, &index, sizeof index);
  };
  for (const auto& argument : node.arguments) {
    if (argument.is_value()) {
      if (!append_value(key, argument.value())) return std::nullopt;
      continue;
    }
    key += argument.is_list() ? 'L' + std::to_string(argument.outputs().size()) + ':' : "O";
    for (const auto& output : argument.outputs()) append_output(output);
  }
  for (const auto* before : node.control) append_output({const_cast<GraphNode*>(before), -1});
  return key;
}

void Compiler::simplify() {
  std::unordered_map<std::string, const GraphNode*> expressions;
  for (const auto* node : nodes_) {
    if (!is_pure(*node) || regions_.contains(node->id)) continue;
    if (options_.fold_constants && node->control.empty()) {
      if (auto results = folded(*node)) {
        constants_.emplace(node->id, std::move(*results));
        continue;
      }
    }
    if (!options_.share_subexpressions) continue;
    if (const auto key = expression(*node)) {
      const auto [first, is_new] = expressions.emplace(*key, node);
      if (!is_new) same_.emplace(node->id, first->second);
    }
  }
}

}  // namespace muster::detail
