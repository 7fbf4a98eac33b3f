#include "muster/graph/interpreter_graph.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/constants.h>

#include "muster/base/error.h"
#include "muster/graph/graph_node.h"

namespace muster::detail {

namespace {

std::string full_name(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name()
                                        : fmt::format("{}.{}", schema.name(), schema.overload_name());
}

bool gives_view(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(),
                     [](const c10::Argument& result) { return result.alias_info() != nullptr; });
}

// "encoder.0" of "encoder.0.weight"
std::string module_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

}  // namespace

void InterpreterGraphImporter::refuse(const torch::jit::Node& node, const std::string& why) const {
  raise<InvalidArgument>("the module{} ({}): {} {}", name_.empty() ? "" : fmt::format(" '{}'", name_),
                         detail::describe(where_), node.kind().toQualString(), why);
}

void InterpreterGraphImporter::bind_module(const torch::jit::Value* value, const std::string& path,
                                           const torch::jit::Module& module) {
  modules_[value] = {path, std::make_shared<torch::jit::Module>(module)};
}

Output InterpreterGraphImporter::variable(const std::string& path, const at::Tensor& value, bool trainable) {
  const std::string name = name_.empty() ? path : fmt::format("{}.{}", name_, path);
  auto& variable = variables_[name];
  if (variable.defined()) return variable;
  auto& data = graph_.data();
  if (const auto known = data.names.find(data.scope + name); known != data.names.end()) {
    const auto traced = data.traced_tensors.find(known->second);
    if (traced == data.traced_tensors.end() || !traced->second.is_same(value))
      raise<InvalidArgument>(
          "the graph has a node '{}' (made at {}), which is not of this module ({}): give each module a name "
          "of its own, the last argument",
          known->first, detail::describe(known->second->where), detail::describe(where_));
    variable = Output(known->second, 0);
  } else {
    variable = graph_.variable(name, value, trainable, where_);
    data.traced_tensors.emplace(variable.get(), value);
  }
  scopes_[variable.get()] = module_of(name);
  return variable;
}

std::vector<Output> InterpreterGraphImporter::import(const torch::jit::Graph& graph) {
  for (const auto* node : graph.nodes()) import_node(*node);
  std::vector<Output> results;
  for (const auto* value : graph.outputs()) {
    std::vector<Argument> arguments;
    if (const auto tuple = tuples_.find(value); tuple != tuples_.end()) {
      arguments = tuple->second;
    } else {
      arguments.push_back(argument_of(value));
    }
    for (const auto& argument : arguments) {
      if (argument.is_value())
        raise<InvalidArgument>("a result of the module ({}) is a constant, and no tensor",
                               detail::describe(where_));
      results.insert(results.end(), argument.outputs().begin(), argument.outputs().end());
    }
  }
  // Changes of variables happen whenever a result is computed: a result comes after all of them.
  std::vector<GraphNode*> effects;
  for (const auto& variable : changed_)
    effects.push_back(graph_.assign(variable, current_.at(variable.get()), where_).get());
  if (effects.empty()) return results;
  for (auto& result : results) {
    result = graph_.add("aten::alias", {result}, {}, where_).output();
    auto& control = result.get()->control;
    control.insert(control.end(), effects.begin(), effects.end());
  }
  return results;
}

std::unordered_set<std::string> InterpreterGraphImporter::changed_variables() const {
  std::unordered_set<std::string> names = hidden_;
  for (const auto& variable : changed_) names.insert(variable.node().name());
  return names;
}

void InterpreterGraphImporter::import_node(const torch::jit::Node& node) {
  if (import_structure(node)) return;
  if (!node.blocks().empty())
    refuse(
        node,
        "is control flow that depends on data, which a graph can't hold: trace the module, or cut it there");
  import_operator(node);
}

// What is about lists, tuples and modules, not about computing.
bool InterpreterGraphImporter::import_structure(const torch::jit::Node& node) {
  switch (node.kind()) {
    case c10::prim::Constant: {
      const auto depends = batch_constants_.find(node.output());
      if (depends != batch_constants_.end()) {
        const Size& size = depends->second;
        Output value = batch_size();
        if (size.batches != 1)
          value = graph_.add("aten::mul.int", {value, size.batches}, {}, where_).output();
        if (size.fixed != 0) value = graph_.add("aten::add.int", {value, size.fixed}, {}, where_).output();
        values_.insert_or_assign(node.output(), Argument(value));
      } else {
        values_.insert_or_assign(node.output(), Argument(*torch::jit::toIValue(node.output())));
      }
      return true;
    }
    case c10::prim::ListConstruct:
      values_.insert_or_assign(node.output(), list_of(node));
      return true;
    case c10::prim::TupleConstruct: {
      std::vector<Argument> parts;
      for (const auto* input : node.inputs()) parts.push_back(argument_of(input));
      tuples_[node.output()] = std::move(parts);
      return true;
    }
    case c10::prim::TupleUnpack: {
      const auto tuple = tuples_.find(node.input());
      if (tuple == tuples_.end()) refuse(node, "takes a tuple apart that is not known");
      const std::vector<Argument> parts = tuple->second;
      for (size_t i = 0; i < node.outputs().size(); ++i)
        values_.insert_or_assign(node.output(i), parts.at(i));
      return true;
    }
    case c10::prim::ListUnpack: {
      const Argument list = argument_of(node.input());
      if (!list.is_list() || list.outputs().size() != node.outputs().size())
        refuse(node, fmt::format("takes a list of {} apart that has another size", node.outputs().size()));
      for (size_t i = 0; i < node.outputs().size(); ++i)
        values_.insert_or_assign(node.output(i), Argument(list.outputs()[i]));
      return true;
    }
    case c10::prim::GetAttr:
      import_attribute(node);
      return true;
    default:
      return false;
  }
}

void InterpreterGraphImporter::import_attribute(const torch::jit::Node& node) {
  const auto found = modules_.find(node.input());
  if (found == modules_.end()) refuse(node, "reads an attribute of what is no module");
  const ModulePath owner = found->second;
  const std::string& attribute = node.s(c10::attr::name);
  const std::string path = owner.path.empty() ? attribute : fmt::format("{}.{}", owner.path, attribute);
  const c10::IValue value = owner.module->attr(attribute);
  if (value.isModule()) {
    bind_module(node.output(), path, value.toModule());
  } else if (value.isTensor() && value.toTensor().defined()) {
    bind(node.output(), Argument(variable(path, value.toTensor(), value.toTensor().requires_grad())));
  } else {
    bind(node.output(), Argument(value));
  }
}

Argument InterpreterGraphImporter::list_of(const torch::jit::Node& node) {
  std::vector<Argument> parts;
  for (const auto* input : node.inputs()) parts.push_back(argument_of(input));
  const auto element = node.output()->type()->expectRef<c10::ListType>().getElementType();
  const bool is_constant =
      std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part.is_value(); });
  if (is_constant && element->kind() != c10::TypeKind::TensorType &&
      element->kind() != c10::TypeKind::OptionalType) {
    c10::impl::GenericList list(element);
    for (const auto& part : parts) list.push_back(part.value());
    return Argument(c10::IValue(std::move(list)));
  }
  std::vector<Output> outputs;
  for (const auto& part : parts) {
    if (part.is_list()) refuse(node, "is a list of lists");
    if (!part.is_value()) {
      outputs.push_back(part.outputs().front());
    } else if (part.value().isNone()) {
      outputs.emplace_back();
    } else {
      outputs.push_back(graph_.value(part.value(), "constant", where_));
    }
  }
  return Argument(std::move(outputs));
}

Output InterpreterGraphImporter::batch_size() {
  if (!batch_size_.defined())
    batch_size_ = graph_.add("aten::size.int", {batch_input_, 0}, {}, where_).output();
  return batch_size_;
}

Argument InterpreterGraphImporter::argument_of(const torch::jit::Value* value) {
  const auto found = values_.find(value);
  if (found == values_.end()) refuse(*value->node(), "gives a value that a graph can't hold");
  // A constant tensor is a node.
  if (found->second.is_value() && found->second.value().isTensor() &&
      found->second.value().toTensor().defined())
    found->second = Argument(graph_.constant(found->second.value().toTensor(), "constant", where_));
  return found->second;
}

std::vector<Argument> InterpreterGraphImporter::arguments_of(const torch::jit::Node& node) {
  std::vector<Argument> arguments;
  for (const auto* input : node.inputs()) arguments.push_back(argument_of(input));
  return arguments;
}

// The module whose parameters it uses, or that of the node before it.
std::string InterpreterGraphImporter::scope_of(const std::vector<Argument>& arguments) const {
  std::string inherited;
  for (const auto& argument : arguments) {
    for (const auto& output : argument.outputs()) {
      if (!output.defined()) continue;
      const auto found = scopes_.find(output.get());
      if (found == scopes_.end() || found->second.empty()) continue;
      if (output.get()->op->kind() == OperatorKind::kVariable) return found->second;
      if (inherited.empty()) inherited = found->second;
    }
  }
  return inherited;
}

void InterpreterGraphImporter::set_results(const torch::jit::Node& node, const Node& made) {
  const auto outputs = node.outputs();
  if (outputs.size() == 1 && outputs[0]->type()->kind() == c10::TypeKind::ListType &&
      made.get()->outputs.front().type->kind() == c10::TypeKind::TensorType) {
    std::vector<Output> list;
    for (int i = 0; i < made.outputs(); ++i) list.push_back(made.output(i));
    values_.insert_or_assign(outputs[0], Argument(std::move(list)));
    return;
  }
  for (size_t i = 0; i < outputs.size(); ++i)
    values_.insert_or_assign(outputs[i], Argument(made.output(static_cast<int>(i))));
}

// A trace notes _convolution, which is how libtorch carries a convolution out. The operator that has a
// derivative of its own, as a loop would use it, is convolution.
Node InterpreterGraphImporter::add_operator_node(const c10::FunctionSchema& schema,
                                                 std::vector<Argument> arguments) {
  constexpr size_t kArgumentsOfConvolution = 9;
  if (schema.name() != "aten::_convolution") return graph_.add(full_name(schema), arguments, {}, where_);
  arguments.erase(arguments.begin() + kArgumentsOfConvolution, arguments.end());
  return graph_.add("aten::convolution", arguments, {}, where_);
}

void InterpreterGraphImporter::import_operator(const torch::jit::Node& node) {
  const auto* schema = node.maybeSchema();
  if (schema == nullptr) refuse(node, "is no operator that a graph can hold");
  const std::vector<Argument> arguments = arguments_of(node);
  const std::string scope = scope_of(arguments);
  std::optional<Scope> named;
  if (!scope.empty()) {
    named.emplace(graph_.name_scope(scope));
  } else if (!name_.empty()) {
    named.emplace(graph_.name_scope(name_));
  }
  if (schema->is_mutable()) {
    replace_in_place(node, arguments);
    return;
  }
  const Node made = add_operator_node(*schema, arguments);
  // Running statistics, which the operator changes itself.
  if (schema->name().find("batch_norm") != std::string::npos ||
      schema->name().find("instance_norm") != std::string::npos) {
    for (const auto& argument : arguments) {
      for (const auto& output : argument.outputs()) {
        if (output.defined() && output.get()->op->kind() == OperatorKind::kVariable)
          hidden_.insert(output.node().name());
      }
    }
  }
  scopes_[made.get()] = scope;
  set_results(node, made);
  if (gives_view(*schema)) {
    for (const auto* output : node.outputs()) views_.insert(output);
    views_.insert(node.inputs().front());
  }
}

// relu_(x) is x = relu(x), where nobody else sees x's memory; of a variable it is an assignment.
void InterpreterGraphImporter::replace_in_place(const torch::jit::Node& node,
                                                const std::vector<Argument>& arguments) {
  const auto& schema = node.schema();
  const bool is_first_alone =
      schema.arguments().front().alias_info() != nullptr &&
      schema.arguments().front().alias_info()->isWrite() &&
      std::count_if(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
        return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
      }) == 1;
  if (!is_first_alone || !schema.name().ends_with('_'))
    refuse(node, "changes its arguments, and has no form that does not");
  if (views_.contains(node.inputs().front()))
    refuse(node, "changes a part of a tensor in place, which a graph can't hold: compute a new tensor");
  const std::string name = schema.name().substr(0, schema.name().size() - 1);
  const Output before = arguments.front().outputs().front();
  Output made;
  try {
    made =
        graph_
            .add(schema.overload_name().empty() ? name : fmt::format("{}.{}", name, schema.overload_name()),
                 arguments, {}, where_)
            .output();
  } catch (const InvalidArgument& error) {
    refuse(node, fmt::format("changes its argument in place, and can't be replaced: {}", error.what()));
  }
  scopes_[made.get()] = scope_of(arguments);
  const auto held = holds_.find(before.get());
  const bool is_variable = before.get()->op->kind() == OperatorKind::kVariable;
  if (is_variable || held != holds_.end()) {
    const Output variable = is_variable ? before : held->second;
    if (!current_.contains(variable.get())) changed_.push_back(variable);
    current_.insert_or_assign(variable.get(), made);
    holds_.insert_or_assign(made.get(), variable);
  }
  values_.insert_or_assign(node.output(), Argument(made));
  values_.insert_or_assign(node.inputs().front(), Argument(made));
}

}  // namespace muster::detail
