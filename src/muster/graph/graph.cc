#include "muster/graph.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>
#include <utility>

#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/task_name.h"
#include "muster/base/text.h"
#include "muster/graph/graph_file.h"
#include "muster/graph/graph_node.h"

namespace muster {

using detail::GraphNode;
using detail::info_of;
using detail::raise;

namespace {

// "add" of "aten::add.Tensor"
std::string default_name(const std::string& op) {
  const size_t colons = op.find("::");
  const std::string name = colons == std::string::npos ? op : op.substr(colons + 2);
  return name.substr(0, name.find('.'));
}

GraphNode& made(detail::GraphData& graph, const std::string& op, std::string_view name, bool is_name_given,
                std::source_location where) {
  return graph.make(detail::Operator::find(op), name, is_name_given, where);
}

void set_assign(GraphNode& node, const Output& variable, const Output& value) {
  node.arguments = {Argument(variable), Argument(value)};
  node.colocated = variable.get();
  detail::set_output(node, variable.dtype(), variable.shape());
}

void check_same_graph(const detail::GraphData& graph, const Node& node, const std::string& subject) {
  if (!node.defined()) raise<InvalidArgument>("{}: an argument is an undefined node", subject);
  if (node.get()->graph != &graph)
    raise<InvalidArgument>("{}: '{}' is a node of another graph", subject, node.name());
}

void check_variable(const Output& variable, const std::string& subject) {
  if (!variable.defined()) raise<InvalidArgument>("{}: the variable is an undefined output", subject);
  if (variable.get()->op->kind() != detail::OperatorKind::kVariable)
    raise<InvalidArgument>("{}: {} is no variable", subject, variable.get()->describe());
}

// All variables get their initial values in one run, before which none of them has a value.
void check_initial(const Output& initial, const std::string& subject) {
  std::vector<const GraphNode*> left = {initial.get()};
  std::unordered_set<const GraphNode*> seen(left.begin(), left.end());
  const auto look_at = [&](const GraphNode* node) {
    if (seen.insert(node).second) left.push_back(node);
  };
  while (!left.empty()) {
    const GraphNode* node = left.back();
    left.pop_back();
    const auto kind = node->op->kind();
    const bool reads = kind == detail::OperatorKind::kRead || kind == detail::OperatorKind::kAssignAdd;
    const GraphNode* variable = reads ? node->arguments.front().outputs().front().get() : node;
    if (variable->op->kind() == detail::OperatorKind::kVariable)
      raise<InvalidArgument>(
          "{}: its initial value is made of the variable '{}', which has no value either while variables are "
          "initialised: make both of the same constants or operators, or assign() this one in a run of its "
          "own afterwards",
          subject, variable->name);
    node->each_input([&](const Output& input) { look_at(input.get()); });
    for (const GraphNode* before : node->control) look_at(before);
  }
}

// A node for the operator, for Graph::add and the functions of muster/ops.h.
Node add_node(detail::GraphData& data, const std::string& op, const std::vector<Argument>& arguments,
              const std::vector<NamedArgument>& named, std::source_location where) {
  const auto subject = [&] {  // for messages
    return fmt::format("{} ({})", op.ends_with('.') ? op.substr(0, op.size() - 1) : op,
                       detail::describe(where));
  };
  auto& known = data.operators[op];
  if (known.empty()) {
    try {
      known = op.find('.') == std::string::npos ? detail::Operator::overloads(op)
                                                : std::vector{detail::Operator::find(op)};
    } catch (const InvalidArgument& error) {
      data.operators.erase(op);
      raise<InvalidArgument>("a node made at {}: {}", detail::describe(where), error.what());
    }
  }
  const auto check_graph = [&](const Argument& argument) {
    for (const auto& output : argument.outputs()) {
      if (output.defined() && output.get()->graph != &data) check_same_graph(data, output, subject());
    }
  };
  for (const auto& argument : arguments) check_graph(argument);
  for (const auto& argument : named) check_graph(argument.value);

  std::vector<detail::MatchedArguments> refused;
  for (const auto& candidate : known) {
    if (candidate->kind() != detail::OperatorKind::kLibtorch)
      raise<InvalidArgument>("{}: it is Muster's own; use the functions of Graph", subject());
    if (candidate->schema().is_mutable())
      raise<InvalidArgument>(
          "{}: it changes its arguments, which a node must not; use the operator that gives a "
          "new tensor",
          subject());
    auto matched = match_arguments(*candidate, arguments, named);
    if (!matched.refusal.empty()) {
      refused.push_back(std::move(matched));
      continue;
    }
    GraphNode& node = data.make(candidate, default_name(op), false, where);
    node.arguments = std::move(matched.arguments);
    try {
      detail::infer_outputs(node);
    } catch (...) {
      data.names.erase(node.name);
      data.nodes.pop_back();
      throw;
    }
    return Node(&node);
  }
  // Of many overloads, those that took the most arguments are what was meant.
  size_t most = 0;
  for (const auto& each : refused) most = std::max(most, each.arguments.size());
  std::erase_if(refused, [most](const auto& each) { return each.arguments.size() < most; });
  if (refused.size() == 1) raise<InvalidArgument>("{}: {}", subject(), refused.front().refusal);
  std::string text = fmt::format("{}: none of its overloads takes these arguments:", subject());
  for (const auto& each : refused) text += "\n  " + each.refusal;
  throw InvalidArgument(text);
}

}  // namespace

namespace detail {

namespace {

std::string describe_line(std::string_view path, uint32_t line) {
  return fmt::format("{}:{}", path.substr(path.find_last_of('/') + 1), line);
}

}  // namespace

std::string describe(const std::source_location& where) {
  return describe_line(where.file_name(), where.line());
}

std::string describe(const SourceLine& where) {
  return describe_line(where.file ? *where.file : "", where.line);
}

void set_output(GraphNode& node, std::optional<at::ScalarType> dtype, const Shape& shape) {
  OutputInfo info{.type = c10::TensorType::get(), .dtype = dtype, .shape = shape};
  try {
    if (dtype && shape.known()) info.examples = examples_of(*dtype, shape);
  } catch (const c10::Error& error) {  // sizes whose product is no number any more
    raise<InvalidArgument>("{}: {}", node.describe(), error.what_without_backtrace());
  }
  node.outputs = {std::move(info)};
}

std::string GraphNode::describe() const {
  return fmt::format("node '{}' ({}, made at {})", name, op->name(), detail::describe(where));
}

c10::TypePtr type_that_travels(const std::string& name, const std::string& subject) {
  static const std::map<std::string, c10::TypePtr> types = {
      // a constant: nobody changes it
      {"Tensor", c10::TensorType::get()},     {"int", c10::IntType::get()},
      {"float", c10::FloatType::get()},       {"bool", c10::BoolType::get()},
      {"List[int]", c10::ListType::ofInts()}, {"NoneType", c10::NoneType::get()}};
  const auto found = types.find(name);
  if (found == types.end())
    raise<InvalidArgument>("{}: a {} can't go from task to task: place the nodes that use it on one", subject,
                           name);
  return found->second;
}

Output differentiated(const Output& gradient) {
  const GraphNode& node = *gradient.get();
  const int64_t position = node.arguments[2].value().toIntVector()[static_cast<size_t>(gradient.index())];
  std::vector<Output> inputs;
  node.arguments[0].outputs().front().get()->each_input(
      [&inputs](const Output& input) { inputs.push_back(input); });
  return inputs[static_cast<size_t>(position)];
}

void check_assignment(const Output& variable, const Output& value, const std::string& subject) {
  const auto& expected = variable.get()->outputs.front();
  if (value.dtype() && value.dtype() != expected.dtype)
    raise<InvalidArgument>("{}: the variable '{}' is of type {}, and {} of type {}", subject,
                           variable.node().name(), c10::toString(*expected.dtype), value.name(),
                           c10::toString(*value.dtype()));
  if (value.shape().known() && expected.shape.known() && value.shape() != expected.shape)
    raise<InvalidArgument>("{}: the variable '{}' is of shape {}, and {} of shape {}", subject,
                           variable.node().name(), expected.shape.to_string(), value.name(),
                           value.shape().to_string());
}

GraphNode& GraphData::make(OperatorPtr op, std::string_view name, bool is_name_given,
                           std::source_location made_at) {
  const std::string full = scope + std::string(name);
  auto [named, is_new] = names.try_emplace(full);
  if (!is_new && is_name_given)
    raise<InvalidArgument>("two nodes are called '{}': one made at {}, the other at {}", full,
                           detail::describe(named->second->where), detail::describe(made_at));
  if (!is_new) {
    int& next = used_names[full];
    while (!is_new) std::tie(named, is_new) = names.try_emplace(fmt::format("{}_{}", full, ++next));
  }
  GraphNode& node = nodes.emplace_back();
  named->second = &node;
  node.graph = this;
  node.id = static_cast<int64_t>(nodes.size()) - 1;
  node.name = named->first;
  node.op = std::move(op);
  auto& file = files[made_at.file_name()];
  if (!file) file = std::make_shared<const std::string>(made_at.file_name());
  node.where = {file, made_at.line()};
  node.control = control;
  node.beside = beside;
  // A variable's device may depend on its size, which is not known yet.
  if (node.op->kind() != OperatorKind::kVariable) set_device(node);
  return node;
}

void GraphData::set_device(GraphNode& node) const {
  for (const auto& device : devices) {
    try {
      node.device = TaskName::parse(node.device).with(TaskName::parse(device(Node(&node)))).to_string();
    } catch (const InvalidArgument& error) {
      raise<InvalidArgument>("node '{}': {}", node.name, error.what());
    }
  }
}

}  // namespace detail

// ---- Shape

Shape::Shape(at::IntArrayRef sizes) {
  sizes_.emplace();
  for (const int64_t size : sizes) {
    if (size < 0 && size != kBatch)
      raise<InvalidArgument>("a size of a tensor is {}; expected 0 or more, or muster::kBatch", size);
    sizes_->push_back(size == kBatch ? Size{.batches = 1} : Size{.fixed = size});
  }
}

c10::IValue detail::shape_value(const Shape& shape) {
  if (!shape.known()) return {};
  std::vector<int64_t> sizes;
  for (const auto& size : shape.sizes()) {
    if (size.batches < 0 || (size.batches > 0 && size.fixed != 0)) return {};
    sizes.push_back(size.batches > 0 ? size.batches * kBatch : size.fixed);
  }
  return sizes;
}

Shape detail::shape_of_value(const c10::IValue& value) {
  if (value.isNone()) return {};
  constexpr int64_t kMostBatches = 1'000'000;
  std::vector<Size> sizes;
  for (const int64_t size : value.toIntVector()) {
    if (size < kMostBatches * kBatch)
      raise<InvalidArgument>("a size of a tensor is {}; expected 0 or more, or some batches", size);
    sizes.push_back(size < 0 ? Size{.batches = size / kBatch} : Size{.fixed = size});
  }
  return Shape(std::move(sizes));
}

bool Shape::accepts(at::IntArrayRef sizes) const {
  if (!sizes_) return true;
  if (sizes.size() != sizes_->size()) return false;
  std::optional<int64_t> batch;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Size& expected = (*sizes_)[i];
    const int64_t rest = sizes[i] - expected.fixed;
    if (expected.batches == 0) {
      if (rest != 0) return false;
    } else if (rest % expected.batches != 0 ||
               rest / expected.batches != batch.value_or(rest / expected.batches)) {
      return false;
    } else {
      batch = rest / expected.batches;
    }
  }
  return true;
}

std::string Shape::to_string() const {
  if (!sizes_) return "?";
  std::string text = "[";
  for (const Size& size : *sizes_) {
    if (text.size() > 1) text += ", ";
    if (size.batches != 0) {
      text += size.batches == 1 ? "N" : fmt::format("{}N", size.batches);
      if (size.fixed != 0) text += fmt::format(" {} {}", size.fixed > 0 ? '+' : '-', std::abs(size.fixed));
    } else {
      text += fmt::format("{}", size.fixed);
    }
  }
  return text + "]";
}

// ---- Output and Node

Node Output::node() const {
  return Node(node_);
}

std::string Output::name() const {
  return node_ == nullptr ? "nothing" : fmt::format("{}:{}", node_->name, index_);
}

const Shape& Output::shape() const {
  if (node_ == nullptr) raise<InvalidArgument>("an undefined output has no shape");
  return info_of(*this).shape;
}

std::optional<at::ScalarType> Output::dtype() const {
  if (node_ == nullptr) raise<InvalidArgument>("an undefined output has no type");
  return info_of(*this).dtype;
}

Output Output::named(std::string_view name) const {
  if (node_ == nullptr) raise<InvalidArgument>("an undefined output can't be called '{}'", name);
  auto& names = node_->graph->names;
  const size_t slash = node_->name.rfind('/');
  std::string full = (slash == std::string::npos ? "" : node_->name.substr(0, slash + 1)) + std::string(name);
  if (full == node_->name) return *this;
  if (const auto same = names.find(full); same != names.end())
    raise<InvalidArgument>("{} can't be called '{}': {} is", node_->describe(), full,
                           same->second->describe());
  names.erase(node_->name);
  node_->name = std::move(full);
  names.emplace(node_->name, node_);
  return *this;
}

const std::string& Node::name() const {
  return node_->name;
}

const std::string& Node::op() const {
  return node_->op->name();
}

const std::string& Node::device() const {
  return node_->device;
}

std::string Node::where() const {
  return detail::describe(node_->where);
}

int Node::outputs() const {
  return static_cast<int>(node_->outputs.size());
}

Output Node::output(int index) const {
  if (node_ == nullptr) raise<InvalidArgument>("an undefined node has no outputs");
  if (index < 0 || index >= outputs())
    raise<InvalidArgument>("{} has no output {}: it has {}", node_->describe(), index, outputs());
  return {node_, index};
}

// ---- Graph

Graph::Graph() : data_(std::make_unique<detail::GraphData>()) {}
Graph::~Graph() = default;
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;

Output Graph::placeholder(std::string_view name, at::ScalarType dtype, Shape shape, Where where) {
  GraphNode& node = made(*data_, "muster::placeholder", name, true, where);
  node.arguments = {Argument(dtype), Argument(detail::shape_value(shape))};
  detail::set_output(node, dtype, shape);
  return {&node, 0};
}

Output Graph::constant(const at::Tensor& value, std::string_view name, Where where) {
  if (!value.defined() || value.layout() != at::kStrided || !value.device().is_cpu())
    raise<InvalidArgument>("the constant '{}' ({}) is no dense tensor on the CPU", name,
                           detail::describe(where));
  GraphNode& node = made(*data_, "muster::constant", name, name != "constant", where);
  const at::Tensor kept = value.detach();
  node.arguments = {Argument(kept)};
  detail::set_output(node, kept.scalar_type(), Shape(kept.sizes()));
  return {&node, 0};
}

Output Graph::value(const c10::IValue& value, std::string_view name, Where where) {
  GraphNode& node = made(*data_, "muster::constant", name, name != "constant", where);
  node.arguments = {Argument(value)};
  node.outputs = {{.type = value.type<c10::Type>(), .examples = detail::Examples{value, value, value}}};
  return {&node, 0};
}

Output Graph::constant(const at::Scalar& value, at::ScalarType dtype, std::string_view name, Where where) {
  return constant(at::scalar_tensor(value, at::TensorOptions(dtype)), name, where);
}

Output Graph::variable(std::string_view name, const at::Tensor& initial, bool trainable, Where where) {
  if (!initial.defined())
    raise<InvalidArgument>("the variable '{}' ({}): its initial value is undefined", name,
                           detail::describe(where));
  const Output value = constant(initial.detach().clone(), fmt::format("{}/initial", name), where);
  return variable(name, value, trainable, where);
}

Output Graph::variable(std::string_view name, const Output& initial, bool trainable, Where where) {
  const std::string subject = fmt::format("the variable '{}' ({})", name, detail::describe(where));
  check_same_graph(*data_, initial, subject);
  if (!initial.dtype()) raise<InvalidArgument>("{}: the type of its initial value is not known", subject);
  check_initial(initial, subject);
  GraphNode& node = made(*data_, "muster::variable", name, true, where);
  node.arguments = {Argument(*initial.dtype()), Argument(detail::shape_value(initial.shape())),
                    Argument(trainable)};
  detail::set_output(node, initial.dtype(), initial.shape());
  data_->set_device(node);
  data_->variables.push_back(&node);
  const Output variable(&node, 0);
  GraphNode& initialize = made(*data_, "muster::assign", fmt::format("{}/initialize", name), true, where);
  set_assign(initialize, variable, initial);
  data_->initializers.push_back(&initialize);
  return variable;
}

Output Graph::read(const Output& variable, Where where) {
  const std::string subject = fmt::format("read ({})", detail::describe(where));
  check_variable(variable, subject);
  check_same_graph(*data_, variable, subject);
  GraphNode& node = made(*data_, "muster::read", "read", false, where);
  node.arguments = {Argument(variable)};
  node.colocated = variable.get();
  detail::set_output(node, variable.dtype(), variable.shape());
  return {&node, 0};
}

Output Graph::assign_by(const std::string& op, const Output& variable, const Output& value, Where where) {
  const std::string subject = fmt::format("{} ({})", op, detail::describe(where));
  check_variable(variable, subject);
  check_same_graph(*data_, variable, subject);
  check_same_graph(*data_, value, subject);
  detail::check_assignment(variable, value, subject);
  GraphNode& node = made(*data_, "muster::" + op, op, false, where);
  set_assign(node, variable, value);
  return {&node, 0};
}

Output Graph::assign(const Output& variable, const Output& value, Where where) {
  return assign_by("assign", variable, value, where);
}

Output Graph::assign_add(const Output& variable, const Output& value, Where where) {
  return assign_by("assign_add", variable, value, where);
}

Output Graph::is_initialized(const Output& variable, Where where) {
  const std::string subject = fmt::format("is_initialized ({})", detail::describe(where));
  check_variable(variable, subject);
  check_same_graph(*data_, variable, subject);
  GraphNode& node = made(*data_, "muster::is_initialized", "is_initialized", false, where);
  node.arguments = {Argument(variable)};
  node.colocated = variable.get();
  detail::set_output(node, at::kBool, Shape(at::IntArrayRef()));
  return {&node, 0};
}

Output Graph::print(const Output& value, std::string_view text, Where where) {
  const std::string subject = fmt::format("print ({})", detail::describe(where));
  check_same_graph(*data_, value, subject);
  if (info_of(value).type->kind() != c10::TypeKind::TensorType)
    raise<InvalidArgument>("{}: {} is no tensor", subject, value.name());
  GraphNode& node = made(*data_, "muster::print", "print", false, where);
  node.arguments = {Argument(value), Argument(std::string(text))};
  node.outputs = {info_of(value)};
  return {&node, 0};
}

Node Graph::group(const std::vector<Node>& nodes, std::string_view name, Where where) {
  for (const auto& each : nodes)
    check_same_graph(*data_, each, fmt::format("group ({})", detail::describe(where)));
  GraphNode& node = made(*data_, "muster::group", name, name != "group", where);
  for (const auto& each : nodes) node.control.push_back(each.get());
  return Node(&node);
}

Node Graph::initializer(Where where) {
  std::vector<Node> nodes;
  for (auto* each : data_->initializers) nodes.emplace_back(each);
  const std::string outer = std::exchange(data_->scope, "");
  GraphNode& node = made(*data_, "muster::group", "initializer", false, where);
  data_->scope = outer;
  node.control.clear();
  for (const auto& each : nodes) node.control.push_back(each.get());
  return Node(&node);
}

Node Graph::add(const std::string& op, const std::vector<Argument>& arguments,
                const std::vector<NamedArgument>& named, Where where) {
  return add_node(*data_, op, arguments, named, where);
}

Scope Graph::name_scope(std::string_view name) {
  if (name.empty()) raise<InvalidArgument>("a scope needs a name");
  auto* data = data_.get();
  const std::string outer = data->scope;
  data->scope += std::string(name) + "/";
  return Scope([data, outer] { data->scope = outer; });
}

Scope Graph::with_device(std::string_view device) {
  static_cast<void>(detail::TaskName::parse(device));
  return with_device([device = std::string(device)](const Node&) { return device; });
}

Scope Graph::with_device(DeviceFunction device) {
  auto* data = data_.get();
  data->devices.push_back(std::move(device));
  return Scope([data] { data->devices.pop_back(); });
}

Scope Graph::colocate_with(const Node& node) {
  auto* data = data_.get();
  check_same_graph(*data, node, "colocate_with");
  GraphNode* const outer = std::exchange(data->beside, node.get());
  return Scope([data, outer, devices = std::exchange(data->devices, {})] {
    data->beside = outer;
    data->devices = devices;
  });
}

Scope Graph::control_dependencies(std::vector<Node> nodes) {
  auto* data = data_.get();
  for (const auto& node : nodes) check_same_graph(*data, node, "control_dependencies");
  const size_t before = data->control.size();
  for (const auto& node : nodes) data->control.push_back(node.get());
  return Scope([data, before] { data->control.resize(before); });
}

Node Graph::find(std::string_view name) const {
  const auto found = data_->names.find(std::string(name));
  return found == data_->names.end() ? Node() : Node(found->second);
}

Output Graph::output(std::string_view name) const {
  int index = 0;
  std::string_view node_name = name;
  if (const size_t colon = name.rfind(':'); colon != std::string_view::npos) {
    const auto number = detail::parse_integer(name.substr(colon + 1));
    if (!number || *number < 0)
      raise<InvalidArgument>("'{}' is no name of an output: expected 'node:0'", name);
    index = static_cast<int>(*number);
    node_name = name.substr(0, colon);
  }
  const Node node = find(node_name);
  if (!node.defined()) {
    std::vector<std::string> names;
    for (const auto& each : data_->nodes) names.push_back(each.name);
    raise<InvalidArgument>("the graph has no node '{}'{}", node_name, detail::suggestion(node_name, names));
  }
  return node.output(index);
}

std::vector<Node> Graph::nodes() const {
  std::vector<Node> all;
  for (auto& node : data_->nodes) all.emplace_back(&node);
  return all;
}

std::vector<Output> Graph::variables() const {
  std::vector<Output> all;
  for (auto* node : data_->variables) all.emplace_back(node, 0);
  return all;
}

void Graph::save(const std::string& file) const {
  detail::save_graph(*this, file);
}

Graph Graph::load(const std::string& file) {
  return detail::load_graph(file);
}

size_t Graph::size() const {
  return data_->nodes.size();
}

namespace detail {

Node add_operator(Graph* graph, const char* op, std::initializer_list<Argument> arguments,
                  std::source_location where) {
  GraphData* data = graph != nullptr ? &graph->data() : nullptr;
  for (const auto& argument : arguments) {
    for (const auto& output : argument.outputs()) {
      if (data == nullptr && output.defined()) data = output.get()->graph;
    }
  }
  if (data == nullptr) raise<InvalidArgument>("{} ({}): all its tensors are undefined", op, describe(where));
  return add_node(*data, op, std::vector<Argument>(arguments), {}, where);
}

}  // namespace detail

}  // namespace muster
