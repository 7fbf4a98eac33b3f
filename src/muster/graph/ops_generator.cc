// Writes muster/ops.h: a C++ function for each operator that this libtorch has and that changes none of its
// arguments. Run by the build:
//
//   ops_generator OUTPUT

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace {

constexpr const char* kPreamble = R"(#pragma once

// A function for each operator of libtorch's: it adds a node to the graph (graph.h) of its arguments, and
// gives the node's outputs. Written by the build from the schemas of the libtorch that is installed.
//
//   muster::Output y = muster::ops::relu(muster::ops::linear(x, w));
//
// Names, arguments and defaults are libtorch's own: see at::relu and the like. An operator that takes no
// tensor has the graph as its first argument. Where two overloads of an operator would be the same to C++,
// the second has the name of its overload at the end. All throw as Graph::add does.

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <source_location>
#include <tuple>
#include <vector>

#include <ATen/core/ivalue.h>

#include "muster/graph.h"

namespace muster {

namespace detail {

/// For the functions below: the node, in the graph, or in that of the first output among the arguments.
Node add_operator(Graph* graph, const char* op, std::initializer_list<Argument> arguments,
                  std::source_location where);

}  // namespace detail

namespace ops {

)";

const std::set<std::string> kKeywords = {"and",    "or",     "not",      "xor",      "int",
                                         "float",  "double", "bool",     "default",  "new",
                                         "delete", "class",  "operator", "template", "union"};

struct Type {
  std::string text;
  bool is_tensor = false;  // a tensor, or a list of them, that has to be given
};

std::optional<Type> value_type(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return Type{"int64_t"};
    case c10::TypeKind::FloatType:
      return Type{"double"};
    case c10::TypeKind::BoolType:
      return Type{"bool"};
    case c10::TypeKind::StringType:
      return Type{"c10::string_view"};
    case c10::TypeKind::NumberType:
      return Type{"at::Scalar"};
    case c10::TypeKind::ScalarTypeType:
      return Type{"at::ScalarType"};
    case c10::TypeKind::LayoutType:
      return Type{"at::Layout"};
    case c10::TypeKind::MemoryFormatType:
      return Type{"at::MemoryFormat"};
    case c10::TypeKind::DeviceObjType:
      return Type{"at::Device"};
    default:
      return std::nullopt;
  }
}

std::optional<Type> parameter_type(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return Type{"const Output&", true};
  if (auto value = value_type(type)) return value;
  if (const auto optional = type->cast<c10::OptionalType>()) {
    const auto element = optional->getElementType();
    if (element->kind() == c10::TypeKind::TensorType) return Type{"const Output&"};
    if (const auto value = value_type(element)) return Type{fmt::format("c10::optional<{}>", value->text)};
    if (const auto list = element->cast<c10::ListType>()) {
      const auto value = value_type(list->getElementType());
      if (value && (value->text == "int64_t" || value->text == "double"))
        return Type{fmt::format("c10::OptionalArrayRef<{}>", value->text)};
    }
    return std::nullopt;
  }
  if (const auto list = type->cast<c10::ListType>()) {
    const auto element = list->getElementType();
    if (element->kind() == c10::TypeKind::TensorType) return Type{"const std::vector<Output>&", true};
    if (const auto optional = element->cast<c10::OptionalType>();
        optional && optional->getElementType()->kind() == c10::TypeKind::TensorType)
      return Type{"const std::vector<Output>&"};
    const auto value = value_type(element);
    if (value && (value->text == "int64_t" || value->text == "double" || value->text == "bool"))
      return Type{fmt::format("at::ArrayRef<{}>", value->text)};
  }
  return std::nullopt;
}

std::string number(double value) {
  if (std::isinf(value))
    return fmt::format("{}std::numeric_limits<double>::infinity()", value < 0 ? "-" : "");
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

std::optional<std::string> default_text(const c10::Argument& argument, const std::string& type) {
  if (!argument.default_value()) return std::nullopt;
  const c10::IValue& value = *argument.default_value();
  if (type == "const Output&") return "{}";
  if (value.isNone()) return "c10::nullopt";
  if (value.isBool()) return value.toBool() ? "true" : "false";
  if (type == "at::ScalarType" || type == "at::Layout" || type == "at::MemoryFormat" ||
      type == "c10::optional<at::MemoryFormat>" || type == "c10::optional<at::ScalarType>")
    return fmt::format("static_cast<{}>({})",
                       type.starts_with("c10") ? type.substr(14, type.size() - 15) : type, value.toInt());
  if (value.isInt()) return fmt::format("{}", value.toInt());
  if (value.isDouble()) return number(value.toDouble());
  if (value.isString()) return fmt::format("R\"({})\"", value.toStringRef());
  if (value.isIntList()) return fmt::format("{{{}}}", fmt::join(value.toIntVector(), ", "));
  if (value.isList() && value.toListRef().empty()) return "{}";
  return std::nullopt;
}

// A function that was written: its parameters' types, and how many of them have to be given.
struct Written {
  std::vector<std::string> types;
  size_t required = 0;
};

// How many parameters have to be given, so that no call could mean another overload as well.
size_t required_beside(const std::vector<Written>& others, const std::vector<std::string>& types,
                       size_t required) {
  for (const auto& other : others) {
    const auto [mine, theirs] =
        std::mismatch(types.begin(), types.end(), other.types.begin(), other.types.end());
    const auto same = static_cast<size_t>(mine - types.begin());
    if (std::max(required, other.required) <= same) required = same + 1;
  }
  return required;
}

// The declaration and definition of an operator's function; empty if C++ can't have one.
std::string function(const c10::FunctionSchema& schema,
                     std::map<std::string, std::vector<Written>>& written) {
  std::string name = schema.name().substr(schema.name().find("::") + 2);
  if (name.starts_with("__") || name.starts_with("_test") || kKeywords.contains(name) ||
      schema.is_mutable() || schema.is_vararg())
    return "";
  std::vector<std::string> types;
  std::vector<std::string> names;
  std::vector<std::optional<std::string>> defaults;
  std::vector<std::string> passed;
  bool has_tensor = false;
  for (const auto& argument : schema.arguments()) {
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) return "";
    const bool is_generator = argument.type()->kind() == c10::TypeKind::OptionalType &&
                              argument.type()->expectRef<c10::OptionalType>().getElementType()->kind() ==
                                  c10::TypeKind::GeneratorType;
    if (is_generator) {
      passed.emplace_back("c10::IValue()");
      continue;
    }
    const auto type = parameter_type(argument.real_type());
    if (!type) return "";
    has_tensor = has_tensor || type->is_tensor;
    types.push_back(type->text);
    names.push_back(kKeywords.contains(argument.name()) ? argument.name() + "_" : argument.name());
    defaults.push_back(default_text(argument, type->text));
    passed.push_back(names.back());
  }
  size_t required = types.size();
  while (required > 0 && defaults[required - 1]) --required;
  required = required_beside(written[name], types, required);
  if (required > types.size()) {
    if (schema.overload_name().empty()) return "";
    name += "_" + schema.overload_name();
    required = types.size();
  }
  written[name].push_back({types, required});
  std::vector<std::string> parameters;
  for (size_t i = types.size(); i-- > 0;)
    parameters.push_back(
        fmt::format("{} {}{}", types[i], names[i], i >= required ? " = " + *defaults[i] : ""));
  if (!has_tensor) parameters.emplace_back("Graph& graph");
  std::reverse(parameters.begin(), parameters.end());
  parameters.emplace_back("std::source_location where = std::source_location::current()");

  // With the dot, also where the overload has no name: this one and no other.
  const std::string node =
      fmt::format("detail::add_operator({}, \"{}.{}\", {{{}}}, where)", has_tensor ? "nullptr" : "&graph",
                  schema.name(), schema.overload_name(), fmt::join(passed, ", "));
  const auto& returns = schema.returns();
  std::string type;
  std::string body;
  if (returns.empty()) {
    type = "Node";
    body = fmt::format("return {};", node);
  } else if (returns.size() > 1) {
    std::vector<std::string> outputs;
    for (size_t i = 0; i < returns.size(); ++i) outputs.push_back(fmt::format("node.output({})", i));
    type = fmt::format("std::tuple<{}>", fmt::join(std::vector<std::string>(returns.size(), "Output"), ", "));
    body = fmt::format("const Node node = {};\n  return {{{}}};", node, fmt::join(outputs, ", "));
  } else if (returns.front().type()->kind() == c10::TypeKind::ListType) {
    type = "std::vector<Output>";
    body = fmt::format(
        "const Node node = {};\n  std::vector<Output> outputs;\n"
        "  for (int i = 0; i < node.outputs(); ++i) outputs.push_back(node.output(i));\n  return outputs;",
        node);
  } else {
    type = "Output";
    body = fmt::format("return {}.output();", node);
  }
  return fmt::format("inline {} {}({}) {{\n  {}\n}}\n\n", type, name, fmt::join(parameters, ", "), body);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "ops_generator: expected the file to write\n";
    return 2;
  }
  auto names = c10::Dispatcher::singleton().getAllOpNames();
  std::sort(names.begin(), names.end(), [](const auto& a, const auto& b) {
    return std::pair(a.name, a.overload_name) < std::pair(b.name, b.overload_name);
  });
  std::string text = kPreamble;
  std::map<std::string, std::vector<Written>> written;
  size_t count = 0;
  for (const auto& name : names) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op) continue;
    const std::string made = function(op->schema(), written);
    if (!made.empty()) ++count;
    text += made;
  }
  text += "}  // namespace ops\n\n}  // namespace muster\n";
  std::ofstream file(argv[1]);
  file << text;
  file.close();
  if (!file || count < 500) {
    std::cerr << fmt::format("ops_generator: {} operators, and {} could not be written\n", count, argv[1]);
    return 1;
  }
  return 0;
}
