#include "muster/graph/graph_proto.h"

#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/task_name.h"
#include "muster/graph/graph_body.h"
#include "muster/graph/graph_node.h"
#include "muster/graph/script_module.h"
#include "muster/optim/rule_text.h"

namespace muster::detail {

namespace {

using graph::ArgumentProto;
using graph::GraphProto;
using graph::NodeProto;
using graph::OutputProto;
using graph::TensorProto;
using graph::ValueProto;

constexpr uint32_t kVersion = 1;
constexpr size_t kMostNodes = 10'000'000;
constexpr uint32_t kMostListed = 1'000'000;  // results of one node

struct NamedType {
  const char* name;
  at::ScalarType type;
};
constexpr std::array kTypes = {
    NamedType{"float32", at::kFloat},
    NamedType{"float64", at::kDouble},
    NamedType{"float16", at::kHalf},
    NamedType{"bfloat16", at::kBFloat16},
    NamedType{"int8", at::kChar},
    NamedType{"uint8", at::kByte},
    NamedType{"int16", at::kShort},
    NamedType{"int32", at::kInt},
    NamedType{"int64", at::kLong},
    NamedType{"bool", at::kBool},
    NamedType{"complex64", at::kComplexFloat},
    NamedType{"complex128", at::kComplexDouble},
};

// ---- Writing.

class GraphWriter {
 public:
  explicit GraphWriter(const GraphData& graph) : graph_(graph) {}

  SavedGraph write() {
    saved_.proto.set_version(kVersion);
    saved_.proto.set_gradient_calls(graph_.gradient_calls);
    saved_.proto.mutable_nodes()->Reserve(static_cast<int>(graph_.nodes.size()));
    for (const auto& node : graph_.nodes) write_node(node, *saved_.proto.add_nodes());
    for (const auto* node : graph_.initializers)
      saved_.proto.add_initializers(static_cast<uint32_t>(node->id));
    return std::move(saved_);
  }

 private:
  void write_node(const GraphNode& node, NodeProto& proto) {
    proto.set_name(node.name);
    proto.set_op(node.op->name());
    for (const auto& argument : node.arguments) write_argument(argument, *proto.add_arguments(), node);
    for (const auto* before : node.control) proto.add_control(static_cast<uint32_t>(before->id));
    proto.set_device(node.device);
    proto.set_depth(node.depth);
    proto.set_filler(node.filler);
    if (node.op->gives_list()) proto.set_listed(static_cast<uint32_t>(node.outputs.size()));
    if (node.colocated != nullptr) proto.set_colocated(static_cast<uint32_t>(node.colocated->id) + 1);
    if (node.beside != nullptr) proto.set_beside(static_cast<uint32_t>(node.beside->id) + 1);
    if (node.where.file) proto.set_file(*node.where.file);
    proto.set_line(node.where.line);
  }

  void write_argument(const Argument& argument, ArgumentProto& proto, const GraphNode& node) {
    if (argument.is_value()) {
      write_value(argument.value(), *proto.mutable_value(), node);
    } else if (argument.is_list()) {
      proto.mutable_outputs();
      for (const auto& output : argument.outputs())
        write_output(output, *proto.mutable_outputs()->add_outputs());
    } else {
      write_output(argument.outputs().front(), *proto.mutable_output());
    }
  }

  static void write_output(const Output& output, OutputProto& proto) {
    if (!output.defined()) return;
    proto.set_node(static_cast<uint32_t>(output.get()->id) + 1);
    proto.set_index(static_cast<uint32_t>(output.index()));
  }

  void write_value(const c10::IValue& value, ValueProto& proto, const GraphNode& node) {
    if (value.isNone()) {
      proto.set_none(true);
    } else if (value.isInt()) {
      proto.set_integer(value.toInt());
    } else if (value.isDouble()) {
      proto.set_real(value.toDouble());
    } else if (value.isBool()) {
      proto.set_boolean(value.toBool());
    } else if (value.isString()) {
      proto.set_text(value.toStringRef());
    } else if (value.isComplexDouble()) {
      proto.mutable_complex()->set_real(value.toComplexDouble().real());
      proto.mutable_complex()->set_imaginary(value.toComplexDouble().imag());
    } else if (value.isDevice()) {
      proto.set_device(value.toDevice().str());
    } else if (value.isTensor()) {
      write_tensor(value.toTensor(), *proto.mutable_tensor(), node);
    } else if (value.isIntList()) {
      proto.mutable_integers();
      for (const int64_t each : value.toIntVector()) proto.mutable_integers()->add_values(each);
    } else if (value.isDoubleList()) {
      proto.mutable_reals();
      for (const double each : value.toDoubleVector()) proto.mutable_reals()->add_values(each);
    } else if (value.isBoolList()) {
      proto.mutable_booleans();
      for (const bool each : value.toBoolList()) proto.mutable_booleans()->add_values(each);
    } else if (value.isList() && value.toListRef().empty()) {
      proto.mutable_integers();
    } else if (value.isList() && value.toListRef().front().isString()) {
      for (const auto& each : value.toListRef()) proto.mutable_texts()->add_values(each.toStringRef());
    } else {
      raise<InvalidArgument>("{} can't be saved: an argument is a {}", node.describe(), value.tagKind());
    }
  }

  void write_tensor(const at::Tensor& tensor, TensorProto& proto, const GraphNode& node) {
    for (const auto& type : kTypes) {
      if (type.type == tensor.scalar_type()) proto.set_dtype(type.name);
    }
    if (proto.dtype().empty())
      raise<InvalidArgument>("{} can't be saved: its tensor is of type {}", node.describe(),
                             c10::toString(tensor.scalar_type()));
    for (const int64_t size : tensor.sizes()) proto.add_sizes(size);
    // Bytes tell nothing of a conjugation or a sign that libtorch has put off.
    const at::Tensor contiguous = tensor.resolve_conj().resolve_neg().contiguous();
    if (contiguous.nbytes() > kLargeTensor) {
      proto.set_outside(static_cast<uint32_t>(saved_.tensors.size()));
      saved_.tensors.push_back(contiguous);
    } else {
      proto.set_bytes(contiguous.data_ptr(), contiguous.nbytes());
    }
  }

  const GraphData& graph_;
  SavedGraph saved_;
};

// ---- Reading.

// A tensor of the type and sizes that a message tells, without its data.
at::Tensor empty_tensor(const TensorProto& proto, const std::string& subject) {
  std::optional<at::ScalarType> type;
  for (const auto& known : kTypes) {
    if (proto.dtype() == known.name) type = known.type;
  }
  if (!type) raise<InvalidArgument>("{}: '{}' is no type of a tensor", subject, proto.dtype());
  auto bytes = static_cast<int64_t>(c10::elementSize(*type));
  for (const int64_t size : proto.sizes()) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes))
      raise<InvalidArgument>("{}: a tensor has a size of {}", subject, size);
  }
  if (proto.data_case() == TensorProto::kBytes && proto.bytes().size() != static_cast<size_t>(bytes))
    raise<DataLoss>("{}: a tensor has {} bytes of data; its sizes need {}", subject, proto.bytes().size(),
                    bytes);
  if (proto.data_case() == TensorProto::DATA_NOT_SET && bytes != 0)
    raise<DataLoss>("{}: a tensor has no data", subject);
  return at::empty(std::vector<int64_t>(proto.sizes().begin(), proto.sizes().end()),
                   at::TensorOptions(*type));
}

class GraphReader {
 public:
  GraphReader(const GraphProto& proto, const std::vector<at::Tensor>& tensors, int depth)
      : proto_(proto), tensors_(tensors), depth_(depth) {}

  Graph read() {
    if (proto_.version() != kVersion)
      raise<InvalidArgument>("the graph is of version {}; this Muster reads version {}", proto_.version(),
                             kVersion);
    if (static_cast<size_t>(proto_.nodes_size()) > kMostNodes)
      raise<InvalidArgument>("the graph has {} nodes; at most {} are read", proto_.nodes_size(), kMostNodes);
    data_.names.reserve(static_cast<size_t>(proto_.nodes_size()));
    for (const auto& node : proto_.nodes()) {
      try {
        read_node(node);
      } catch (const c10::Error& error) {  // libtorch's, of a value that only it can judge
        raise<InvalidArgument>("{}: {}", subject(), error.what_without_backtrace());
      }
    }
    for (const uint32_t id : proto_.initializers()) {
      if (id >= data_.nodes.size() || data_.nodes[id].op->kind() != OperatorKind::kAssign)
        raise<InvalidArgument>("the graph's initializer {} is no assignment", id);
      data_.initializers.push_back(&data_.nodes[id]);
    }
    if (proto_.gradient_calls() < 0)
      raise<InvalidArgument>("the graph has {} calls of gradients()", proto_.gradient_calls());
    data_.gradient_calls = proto_.gradient_calls();
    return std::move(graph_);
  }

 private:
  void read_node(const NodeProto& proto) {
    reading_ = &proto;
    number_ = data_.nodes.size();
    if (proto.name().empty()) raise<InvalidArgument>("{}: it has no name", subject());
    OperatorPtr& op = operators_[proto.op()];
    if (!op) {
      try {
        op = Operator::find(proto.op());
      } catch (const InvalidArgument& error) {
        raise<InvalidArgument>("{}: {}", subject(), error.what());
      }
    }
    if (op->kind() == OperatorKind::kLibtorch && op->schema().is_mutable())
      raise<InvalidArgument>("{}: it changes its arguments, which a node must not", subject());
    check_device(proto.device());
    std::vector<Argument> arguments;
    arguments.reserve(static_cast<size_t>(proto.arguments_size()));
    for (const auto& argument : proto.arguments()) arguments.push_back(read_argument(argument));
    if (arguments.size() != op->schema().arguments().size())
      raise<InvalidArgument>("{}: it has {} arguments; expected {}", subject(), arguments.size(),
                             op->schema().arguments().size());
    if (op->kind() != OperatorKind::kLibtorch) check_own_arguments(*op, arguments);
    auto matched = match_arguments(*op, arguments, {});
    if (!matched.refusal.empty()) raise<InvalidArgument>("{}: {}", subject(), matched.refusal);
    std::vector<GraphNode*> control;
    for (const uint32_t id : proto.control()) control.push_back(&node_at(id));
    GraphNode* colocated = proto.colocated() == 0 ? nullptr : &node_at(proto.colocated() - 1);
    GraphNode* beside = proto.beside() == 0 ? nullptr : &node_at(proto.beside() - 1);

    GraphNode& node = data_.make(op, proto.name(), /*is_name_given=*/true, std::source_location());
    node.arguments = std::move(matched.arguments);
    node.control = std::move(control);
    node.colocated = colocated;
    node.beside = beside;
    node.device = proto.device();
    node.depth = proto.depth();
    node.filler = proto.filler();
    auto& file = files_[proto.file()];
    if (!file) file = std::make_shared<const std::string>(proto.file());
    node.where = {file, proto.line()};
    set_outputs(node, proto.listed());
  }

  // For messages.
  std::string subject() const {
    if (reading_ == nullptr) return "the graph";
    return fmt::format("node {} of the graph, '{}' ({})", number_, reading_->name(), reading_->op());
  }

  // Most nodes have the device of the one before.
  void check_device(const std::string& device) {
    if (device == last_device_) return;
    try {
      static_cast<void>(TaskName::parse(device));
    } catch (const InvalidArgument& error) {
      raise<InvalidArgument>("{}: {}", subject(), error.what());
    }
    last_device_ = device;
  }

  GraphNode& node_at(uint32_t id) {
    if (id >= data_.nodes.size())
      raise<InvalidArgument>("{}: it refers to node {}, which does not come before it", subject(), id);
    return data_.nodes[id];
  }

  Output read_output(const OutputProto& proto) {
    if (proto.node() == 0) return {};
    GraphNode& node = node_at(proto.node() - 1);
    if (proto.index() >= node.outputs.size())
      raise<InvalidArgument>("{}: '{}' has no output {}", subject(), node.name, proto.index());
    return {&node, static_cast<int>(proto.index())};
  }

  Argument read_argument(const ArgumentProto& proto) {
    switch (proto.kind_case()) {
      case ArgumentProto::kValue:
        return Argument(read_value(proto.value()));
      case ArgumentProto::kOutput:
        return Argument(read_output(proto.output()));
      case ArgumentProto::kOutputs: {
        std::vector<Output> outputs;
        for (const auto& output : proto.outputs().outputs()) outputs.push_back(read_output(output));
        return Argument(std::move(outputs));
      }
      case ArgumentProto::KIND_NOT_SET:
        break;
    }
    raise<InvalidArgument>("{}: an argument is empty", subject());
  }

  c10::IValue read_value(const ValueProto& proto) {
    switch (proto.kind_case()) {
      case ValueProto::kNone:
        return {};
      case ValueProto::kInteger:
        return proto.integer();
      case ValueProto::kReal:
        return proto.real();
      case ValueProto::kBoolean:
        return proto.boolean();
      case ValueProto::kText:
        return proto.text();
      case ValueProto::kComplex:
        return c10::complex<double>(proto.complex().real(), proto.complex().imaginary());
      case ValueProto::kDevice:
        if (proto.device() != "cpu")
          raise<InvalidArgument>("{}: '{}' is no device here", subject(), proto.device());
        return at::Device(at::kCPU);
      case ValueProto::kTensor:
        return read_tensor(proto.tensor());
      case ValueProto::kIntegers:
        return std::vector<int64_t>(proto.integers().values().begin(), proto.integers().values().end());
      case ValueProto::kReals:
        return std::vector<double>(proto.reals().values().begin(), proto.reals().values().end());
      case ValueProto::kBooleans: {
        c10::List<bool> list;
        for (const bool each : proto.booleans().values()) list.push_back(each);
        return list;
      }
      case ValueProto::kTexts: {
        c10::List<std::string> list;
        for (const auto& each : proto.texts().values()) list.push_back(each);
        return list;
      }
      case ValueProto::KIND_NOT_SET:
        break;
    }
    raise<InvalidArgument>("{}: a value is empty", subject());
  }

  at::Tensor read_tensor(const TensorProto& proto) {
    const at::Tensor expected =
        proto.data_case() == TensorProto::kOutside ? at::Tensor() : empty_tensor(proto, subject());
    if (expected.defined()) {
      if (expected.nbytes() > 0) std::memcpy(expected.data_ptr(), proto.bytes().data(), expected.nbytes());
      return expected;
    }
    if (proto.outside() >= tensors_.size())
      raise<DataLoss>("{}: its tensor, number {}, is missing", subject(), proto.outside());
    const at::Tensor& tensor = tensors_[proto.outside()];
    if (!tensor.sizes().equals(
            at::IntArrayRef(proto.sizes().data(), static_cast<size_t>(proto.sizes_size()))))
      raise<DataLoss>("{}: its tensor, number {}, has other sizes", subject(), proto.outside());
    return tensor;
  }

  void set_outputs(GraphNode& node, uint32_t listed) {
    switch (node.op->kind()) {
      case OperatorKind::kLibtorch:
        if (listed > kMostListed) raise<InvalidArgument>("{}: it has {} results", subject(), listed);
        infer_outputs(node, listed);
        break;
      case OperatorKind::kPlaceholder:
        set_output(node, optional_type(node.arguments[0]), shape_of_value(node.arguments[1].value()));
        break;
      case OperatorKind::kVariable:
        set_output(node, scalar_type(node.arguments[0]), shape_of_value(node.arguments[1].value()));
        data_.variables.push_back(&node);
        break;
      case OperatorKind::kConstant:
        set_constant(node);
        break;
      case OperatorKind::kRead:
      case OperatorKind::kAssign:
      case OperatorKind::kAssignAdd:
      case OperatorKind::kUpdate:
      case OperatorKind::kCarryOut: {
        const Output variable = variable_of(node);
        const bool has_rule =
            node.op->kind() == OperatorKind::kUpdate || node.op->kind() == OperatorKind::kCarryOut;
        if (!has_rule) set_output(node, variable.dtype(), variable.shape());
        if (node.op->kind() == OperatorKind::kAssign || node.op->kind() == OperatorKind::kAssignAdd)
          check_assignment(variable, node.arguments[1].outputs().front(), subject());
        if (has_rule) static_cast<void>(parse_rule(node.arguments[2].value().toStringRef()));
        break;
      }
      case OperatorKind::kIsInitialized:
        static_cast<void>(variable_of(node));
        set_output(node, at::kBool, Shape(at::IntArrayRef()));
        break;
      case OperatorKind::kAccumulate:
        static_cast<void>(variable_of(node));
        break;
      case OperatorKind::kPush:
      case OperatorKind::kNextToken:
        if (variable_of(node).dtype() != at::kLong)
          raise<InvalidArgument>("{}: it counts steps in what is no integer", subject());
        set_replica_output(node);
        break;
      case OperatorKind::kGradient:
        set_gradient(node);
        break;
      case OperatorKind::kSumGradients: {
        const auto& parts = node.arguments[0].outputs();
        if (parts.empty()) raise<InvalidArgument>("{}: it adds up no gradients", subject());
        check_parts(parts);
        node.outputs = {info_of(parts.front())};
        break;
      }
      case OperatorKind::kReceive:
        node.outputs = {{.type = type_that_travels(node.arguments[2].value().toStringRef(), subject()),
                         .dtype = optional_type(node.arguments[3])}};
        break;
      case OperatorKind::kPrint: {
        const Output value = node.arguments[0].outputs().front();
        node.outputs = {info_of(value)};
        break;
      }
      case OperatorKind::kCond:
      case OperatorKind::kWhileLoop:
        set_results_of_bodies(node, subject(), depth_ + 1);
        break;
      case OperatorKind::kScript:
        set_script_outputs(node, subject());
        break;
      case OperatorKind::kQueue:
        check_queue(node, 0);
        break;
      case OperatorKind::kEnqueue:
        check_queue(node, 2);
        if (node.arguments[0].outputs().size() != node.arguments[3].value().toIntVector().size())
          raise<InvalidArgument>("{}: it has another number of tensors than types", subject());
        break;
      case OperatorKind::kDequeue:
      case OperatorKind::kQueueSize:
        check_queue(node, 1);
        set_queue_outputs(node);
        break;
      case OperatorKind::kCloseQueue:
        check_queue(node, 1);
        break;
      case OperatorKind::kGroup:
      case OperatorKind::kSend:
        break;
    }
  }

  // A queue's capacity is argument `first`, and its types are the next.
  void check_queue(const GraphNode& node, size_t first) const {
    const int64_t capacity = node.arguments[first].value().toInt();
    const auto types = node.arguments[first + 1].value().toIntVector();
    if (capacity < 1 || types.empty())
      raise<InvalidArgument>("{}: a queue of {} elements with {} tensors each", subject(), capacity,
                             types.size());
    for (const int64_t type : types) static_cast<void>(scalar_type(Argument(type)));
  }

  // What is no tensor is a value, and what is one is an output: the functions of Graph make it so.
  void check_own_arguments(const Operator& op, const std::vector<Argument>& arguments) const {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto& formal = op.schema().arguments()[i];
      c10::TypePtr type = formal.type();
      if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
      if (const auto list = type->cast<c10::ListType>()) type = list->getElementType();
      if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
      if (type->kind() == c10::TypeKind::AnyType) continue;
      const bool takes_tensor = type->kind() == c10::TypeKind::TensorType;
      const bool is_value = arguments[i].is_value();
      if (takes_tensor ? is_value && !arguments[i].value().isNone() : !is_value)
        raise<InvalidArgument>("{}: its argument '{}' is of another kind", subject(), formal.name());
    }
  }

  // Gradients that are added up are of one output.
  void check_parts(const std::vector<Output>& parts) const {
    std::optional<Output> of;
    for (const auto& part : parts) {
      if (part.get()->op->kind() != OperatorKind::kGradient) continue;
      const Output output = differentiated(part);
      if (of.value_or(output) != output)
        raise<InvalidArgument>("{}: it adds up gradients of {} and of {}", subject(), of->name(),
                               output.name());
      of = output;
    }
  }

  at::ScalarType scalar_type(const Argument& argument) const {
    const int64_t number = argument.value().toInt();
    for (const auto& known : kTypes) {
      if (static_cast<int64_t>(known.type) == number) return known.type;
    }
    raise<InvalidArgument>("{}: {} is no type of a tensor", subject(), number);
  }

  std::optional<at::ScalarType> optional_type(const Argument& argument) const {
    return argument.value().isNone() ? std::nullopt : std::optional(scalar_type(argument));
  }

  void set_constant(GraphNode& node) {
    if (!node.arguments[0].is_value()) raise<InvalidArgument>("{}: its value is an output", subject());
    const c10::IValue& value = node.arguments[0].value();
    if (value.isTensor()) {
      set_output(node, value.toTensor().scalar_type(), Shape(value.toTensor().sizes()));
    } else {
      node.outputs = {{.type = value.type<c10::Type>(), .examples = Examples{value, value, value}}};
    }
  }

  Output variable_of(const GraphNode& node) const {
    const auto& outputs = node.arguments[0].outputs();
    if (outputs.size() != 1 || outputs.front().get()->op->kind() != OperatorKind::kVariable)
      raise<InvalidArgument>("{}: it changes or reads what is no variable", subject());
    return outputs.front();
  }

  void set_gradient(GraphNode& node) {
    const auto& outputs = node.arguments[0].outputs();
    const auto& gradients = node.arguments[1].outputs();
    if (outputs.empty() || !node.arguments[0].is_list() || !node.arguments[1].is_list() ||
        outputs.size() != gradients.size())
      raise<InvalidArgument>("{}: {} gradients are given for {} outputs", subject(), gradients.size(),
                             outputs.size());
    const GraphNode& forward = *outputs.front().get();
    std::vector<Output> inputs;
    forward.each_input([&inputs](const Output& input) { inputs.push_back(input); });
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].get() != &forward || !gradients[i].defined())
        raise<InvalidArgument>("{}: its outputs are not of one node, or have no gradients", subject());
    }
    if (!forward.op->is_differentiable())
      raise<InvalidArgument>("{}: '{}' has no derivative", subject(), forward.name);
    for (const int64_t position : node.arguments[2].value().toIntVector()) {
      if (position < 0 || position >= static_cast<int64_t>(inputs.size()))
        raise<InvalidArgument>("{}: '{}' has no input {}", subject(), forward.name, position);
      const Output& input = inputs[static_cast<size_t>(position)];
      node.outputs.push_back(info_of(input));
    }
  }

  const GraphProto& proto_;
  const std::vector<at::Tensor>& tensors_;
  const int depth_;
  Graph graph_;
  GraphData& data_ = graph_.data();
  std::unordered_map<std::string, std::shared_ptr<const std::string>> files_;
  std::unordered_map<std::string, OperatorPtr> operators_;
  const NodeProto* reading_ = nullptr;
  size_t number_ = 0;
  std::string last_device_;
};

}  // namespace

GraphProto& make_proto(google::protobuf::Arena& arena) {
  return *google::protobuf::Arena::CreateMessage<GraphProto>(&arena);
}

SavedGraph to_proto(const Graph& graph) {
  return GraphWriter(graph.data()).write();
}

Graph from_proto(const GraphProto& proto, const std::vector<at::Tensor>& tensors, int depth) {
  return GraphReader(proto, tensors, depth).read();
}

std::vector<at::Tensor> empty_tensors(const GraphProto& proto) {
  std::vector<at::Tensor> tensors;
  for (const auto& node : proto.nodes()) {
    for (const auto& argument : node.arguments()) {
      if (!argument.has_value() || !argument.value().has_tensor()) continue;
      const TensorProto& tensor = argument.value().tensor();
      if (tensor.data_case() != TensorProto::kOutside) continue;
      const std::string subject = fmt::format("the node '{}'", node.name());
      if (tensor.outside() != tensors.size())
        raise<InvalidArgument>("{}: its tensor is number {}; expected {}", subject, tensor.outside(),
                               tensors.size());
      tensors.push_back(empty_tensor(tensor, subject));
    }
  }
  return tensors;
}

std::string dtype_name(at::ScalarType type) {
  for (const auto& known : kTypes) {
    if (known.type == type) return known.name;
  }
  return c10::toString(type);
}

}  // namespace muster::detail
