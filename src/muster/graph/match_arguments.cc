// How arguments are compared with an operator's schema.

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/core/List.h>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/graph/graph_node.h"

namespace muster::detail {

namespace {

c10::TypePtr without_optional(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

// The value as the type wants it: numbers become wider ones, one number a list of them. Empty if it can't.
std::optional<c10::IValue> converted(const c10::IValue& value, const c10::Argument& formal) {
  const c10::TypePtr& type = formal.type();
  if (value.isNone()) {
    if (type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::NoneType) return value;
    return std::nullopt;
  }
  const c10::TypePtr wanted = without_optional(type);
  switch (wanted->kind()) {
    case c10::TypeKind::FloatType:
      if (value.isInt()) return static_cast<double>(value.toInt());
      break;
    case c10::TypeKind::NumberType:
      if (value.isScalar()) return value;
      break;
    case c10::TypeKind::SymIntType:
      if (value.isInt()) return value;
      break;
    case c10::TypeKind::ListType: {
      const auto element = wanted->expectRef<c10::ListType>().getElementType();
      const auto kind = element->kind();
      const bool of_integers = kind == c10::TypeKind::IntType || kind == c10::TypeKind::SymIntType;
      if (value.isInt() && of_integers && formal.N())
        return c10::List<int64_t>(std::vector<int64_t>(static_cast<size_t>(*formal.N()), value.toInt()));
      if (value.isIntList() && of_integers) return value;
      if (value.isList() && value.toListRef().empty()) return c10::impl::GenericList(element);
      if (value.isIntList() && kind == c10::TypeKind::FloatType) {
        c10::List<double> list;
        for (const int64_t each : value.toIntVector()) list.push_back(static_cast<double>(each));
        return list;
      }
      break;
    }
    default:
      break;
  }
  if (value.type<c10::Type>()->isSubtypeOf(*type)) return value;
  return std::nullopt;
}

bool takes(const c10::TypePtr& type, const Output& output) {
  if (!output.defined()) return type->kind() == c10::TypeKind::OptionalType;
  return info_of(output).type->isSubtypeOf(*type);
}

std::string describe_type(const Argument& argument) {
  if (argument.is_list()) return fmt::format("a list of {} outputs", argument.outputs().size());
  if (argument.is_value())
    return argument.value().isNone() ? "None" : argument.value().type<c10::Type>()->annotation_str();
  const Output& output = argument.outputs().front();
  if (!output.defined()) return "an undefined output";
  return fmt::format("{}, a {}", output.name(), info_of(output).type->annotation_str());
}

std::optional<Argument> matched(const Argument& argument, const c10::Argument& formal) {
  const c10::TypePtr& type = formal.type();
  if (argument.is_value()) {
    auto value = converted(argument.value(), formal);
    if (!value) return std::nullopt;
    return Argument(*value);
  }
  if (!argument.is_list()) {
    const Output& output = argument.outputs().front();
    if (!output.defined() && type->kind() == c10::TypeKind::OptionalType) return Argument(c10::IValue());
    return takes(type, output) ? std::optional<Argument>(argument) : std::nullopt;
  }
  const auto list = without_optional(type)->cast<c10::ListType>();
  if (!list) return std::nullopt;
  const auto& outputs = argument.outputs();
  const bool fits = std::all_of(outputs.begin(), outputs.end(), [&list](const Output& output) {
    return takes(list->getElementType(), output);
  });
  return fits ? std::optional<Argument>(argument) : std::nullopt;
}

}  // namespace

MatchedArguments match_arguments(const Operator& op, const std::vector<Argument>& arguments,
                                 const std::vector<NamedArgument>& named) {
  const auto& formals = op.schema().arguments();
  MatchedArguments matched_so_far;
  const auto refused = [&](const std::string& why) {
    matched_so_far.refusal = fmt::format("{}; it is {}", why, c10::toString(op.schema()));
    return matched_so_far;
  };
  for (const auto& each : named) {
    const auto index = op.schema().argumentIndexWithName(each.name);
    if (!index) {
      std::vector<std::string> names;
      for (const auto& formal : formals) names.push_back(formal.name());
      return refused(fmt::format("it has no argument '{}'{}", each.name, suggestion(each.name, names)));
    }
    if (static_cast<size_t>(*index) < arguments.size())
      return refused(fmt::format("the argument '{}' is given twice", each.name));
  }
  for (size_t i = 0; i < formals.size(); ++i) {
    const c10::Argument& formal = formals[i];
    const auto by_name = std::find_if(named.begin(), named.end(),
                                      [&formal](const auto& each) { return each.name == formal.name(); });
    if (i >= arguments.size() && by_name == named.end()) {
      if (!formal.default_value()) return refused(fmt::format("the argument '{}' is missing", formal.name()));
      matched_so_far.arguments.emplace_back(*formal.default_value());
      continue;
    }
    const Argument& given = i < arguments.size() ? arguments[i] : by_name->value;
    auto fitting = matched(given, formal);
    if (!fitting)
      return refused(fmt::format("the argument '{}' is {}, where it takes a {}", formal.name(),
                                 describe_type(given), formal.type()->annotation_str()));
    matched_so_far.arguments.push_back(std::move(*fitting));
  }
  if (arguments.size() > formals.size())
    return refused(fmt::format("{} arguments are given, where it has {}", arguments.size(), formals.size()));
  return matched_so_far;
}

}  // namespace muster::detail
