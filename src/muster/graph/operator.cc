#include "muster/graph/operator.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/csrc/jit/runtime/operator.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {

namespace {

struct OwnOperator {
  OperatorKind kind;
  const char* schema;
};

// An argument marked (a!) is a variable, which the node changes: it is not read.
constexpr std::array kOwnOperators = {
    OwnOperator{OperatorKind::kPlaceholder, "muster::placeholder(ScalarType? dtype, int[]? shape) -> Tensor"},
    OwnOperator{OperatorKind::kConstant, "muster::constant(Any value) -> Any"},
    OwnOperator{OperatorKind::kVariable,
                "muster::variable(ScalarType dtype, int[]? shape, bool trainable) -> Tensor"},
    OwnOperator{OperatorKind::kRead, "muster::read(Tensor(a!) variable) -> Tensor"},
    OwnOperator{OperatorKind::kAssign, "muster::assign(Tensor(a!) variable, Tensor value) -> Tensor"},
    OwnOperator{OperatorKind::kAssignAdd, "muster::assign_add(Tensor(a!) variable, Tensor value) -> Tensor"},
    OwnOperator{OperatorKind::kIsInitialized, "muster::is_initialized(Tensor(a!) variable) -> Tensor"},
    OwnOperator{OperatorKind::kUpdate,
                "muster::update(Tensor(a!) variable, Tensor gradient, str rule, Tensor? lr) -> ()"},
    OwnOperator{OperatorKind::kAccumulate,
                "muster::accumulate(Tensor(a!) variable, Tensor gradient, int replica, str group) -> ()"},
    OwnOperator{OperatorKind::kPush,
                "muster::push(Tensor(a!) global_step, Tensor lr, int replica, int replicas, int aggregate, "
                "str group) -> Tensor"},
    OwnOperator{OperatorKind::kCarryOut,
                "muster::carry_out(Tensor(a!) variable, Tensor commands, str rule, str group) -> ()"},
    OwnOperator{OperatorKind::kNextToken,
                "muster::next_token(Tensor(a!) global_step, Tensor? commands, int replica, int replicas, int "
                "aggregate, str group) -> Tensor"},
    OwnOperator{
        OperatorKind::kGradient,
        "muster::gradient(Tensor[] outputs, Tensor?[] gradients, int[] inputs, int call) -> Tensor[]"},
    OwnOperator{OperatorKind::kSumGradients, "muster::sum_gradients(Tensor[] gradients) -> Tensor"},
    OwnOperator{OperatorKind::kGroup, "muster::group() -> ()"},
    OwnOperator{OperatorKind::kPrint, "muster::print(Tensor value, str text) -> Tensor"},
    OwnOperator{OperatorKind::kCond,
                "muster::cond(Tensor predicate, Tensor[] captured, str then_branch, str else_branch) -> "
                "Tensor[]"},
    OwnOperator{OperatorKind::kWhileLoop,
                "muster::while_loop(Tensor[] initial, Tensor[] captured, str condition, str body) -> "
                "Tensor[]"},
    OwnOperator{OperatorKind::kScript,
                "muster::script(Tensor[] inputs, Tensor[] parameters, str code) -> Tensor[]"},
    OwnOperator{OperatorKind::kQueue, "muster::queue(int capacity, int[] types) -> ()"},
    OwnOperator{OperatorKind::kEnqueue,
                "muster::enqueue(Tensor[] element, str queue, int capacity, int[] types) -> ()"},
    OwnOperator{OperatorKind::kDequeue, "muster::dequeue(str queue, int capacity, int[] types) -> Tensor[]"},
    OwnOperator{OperatorKind::kQueueSize,
                "muster::queue_size(str queue, int capacity, int[] types) -> Tensor"},
    OwnOperator{OperatorKind::kCloseQueue, "muster::close_queue(str queue, int capacity, int[] types) -> ()"},
    OwnOperator{OperatorKind::kSend, "muster::send(Any? value, int key, int task) -> ()"},
    OwnOperator{OperatorKind::kReceive,
                "muster::receive(int key, int task, str type, ScalarType? dtype) -> Any"},
};

const OperatorPtr* find_own(const std::string& name) {
  static const auto operators = [] {  // a constant: nobody changes it
    std::map<std::string, OperatorPtr> made;
    for (const auto& own : kOwnOperators) {
      auto schema = torch::jit::parseSchema(own.schema);
      const std::string full = schema.name();
      made.emplace(full, std::make_shared<Operator>(full, std::move(schema), own.kind));
    }
    return made;
  }();
  const auto found = operators.find(name);
  return found == operators.end() ? nullptr : &found->second;
}

// Operators that libtorch does not mark: they draw random numbers when they drop out, or change running
// statistics that they are given.
bool is_secretly_impure(const std::string& name) {
  constexpr std::array kParts = {"batch_norm", "instance_norm", "lstm", "gru", "rnn_", "attention"};
  return std::any_of(kParts.begin(), kParts.end(),
                     [&name](const char* part) { return name.find(part) != std::string::npos; });
}

// Only of libtorch's own operators it is known which ones are pure.
bool is_of_libtorch(const std::string& name) {
  constexpr std::array kNamespaces = {"aten::", "prim::", "prims::"};
  return std::any_of(kNamespaces.begin(), kNamespaces.end(),
                     [&name](const char* each) { return name.starts_with(each); });
}

c10::OperatorName parse_name(const std::string& name) {
  const size_t dot = name.find('.', name.find("::") == std::string::npos ? 0 : name.find("::"));
  return dot == std::string::npos ? c10::OperatorName(name, "")
                                  : c10::OperatorName(name.substr(0, dot), name.substr(dot + 1));
}

OperatorPtr find_in_dispatcher(const c10::OperatorName& name) {
  const auto handle = c10::Dispatcher::singleton().findSchema(name);
  return handle ? std::make_shared<Operator>(*handle) : nullptr;
}

// Whether it can be called with the arguments of its schema alone. Others take as many as a line of a script
// says (prim::Print), or are made from that line (prim::ConstantChunk): what they do without it is undefined.
bool can_be_called(const torch::jit::Operator& known) {
  return known.hasOperation() && !known.schema().is_vararg();
}

// What only libtorch's interpreter knows: aten::size.int and the like, of traced modules.
OperatorPtr find_in_interpreter(const std::string& full, const torch::jit::Operator& found) {
  const torch::jit::Operation operation = found.getOperation();
  return std::make_shared<Operator>(full, found.schema(), [operation](torch::jit::Stack& stack) mutable {
    auto call = operation;
    call(stack);
  });
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : fmt::format("{}.{}", name.name, name.overload_name);
}

[[noreturn]] void raise_unknown(const std::string& name) {
  const c10::OperatorName wanted = parse_name(name);
  std::vector<std::string> overloads;
  std::vector<std::string> names;
  for (const auto& known : c10::Dispatcher::singleton().getAllOpNames()) {
    if (known.name == wanted.name) overloads.push_back(full_name(known));
    names.push_back(known.name);
  }
  for (const auto& own : kOwnOperators) names.push_back(torch::jit::parseSchema(own.schema).name());
  if (!overloads.empty()) {
    std::sort(overloads.begin(), overloads.end());
    raise<InvalidArgument>("there is no operator {}; this libtorch has {}", name, fmt::join(overloads, ", "));
  }
  raise<InvalidArgument>("there is no operator {}{}", name, suggestion(wanted.name, names));
}

// Tensors before numbers: a number can stand for a tensor nowhere, and a tensor for a number sometimes.
size_t numbers_taken(const Operator& op) {
  const auto& arguments = op.schema().arguments();
  return static_cast<size_t>(std::count_if(
      arguments.begin(), arguments.end(),
      [](const c10::Argument& argument) { return argument.type()->kind() == c10::TypeKind::NumberType; }));
}

}  // namespace

Operator::Operator(std::string name, c10::FunctionSchema schema, OperatorKind kind)
    : name_(std::move(name)),
      schema_(std::make_shared<const c10::FunctionSchema>(std::move(schema))),
      kind_(kind),
      is_pure_(kind == OperatorKind::kConstant) {}

Operator::Operator(c10::OperatorHandle handle)
    : name_(full_name(handle.operator_name())),
      schema_(std::shared_ptr<const c10::FunctionSchema>(), &handle.schema()),
      is_pure_(is_of_libtorch(name_) && !handle.hasTag(at::Tag::nondeterministic_seeded) &&
               !handle.schema().is_mutable() && !is_secretly_impure(name_)),
      handle_(handle) {}

Operator::Operator(std::string name, c10::FunctionSchema schema,
                   std::function<void(torch::jit::Stack&)> operation)
    : name_(std::move(name)),
      schema_(std::make_shared<const c10::FunctionSchema>(std::move(schema))),
      is_pure_(is_of_libtorch(name_) && !schema_->is_mutable()),
      operation_(std::move(operation)) {}

bool Operator::gives_list() const {
  const auto& returns = schema().returns();
  if (returns.size() != 1) return false;
  const auto list = returns.front().type()->cast<c10::ListType>();
  return list && list->getElementType()->kind() == c10::TypeKind::TensorType;
}

bool Operator::writes(size_t argument) const {
  const auto* alias = schema().arguments()[argument].alias_info();
  return alias != nullptr && alias->isWrite();
}

OperatorPtr Operator::find(const std::string& name) {
  if (const auto* own = find_own(name)) return *own;
  const auto found = find_in_dispatcher(parse_name(name));
  if (found && !found->schema().is_vararg()) return found;
  const c10::OperatorName wanted = parse_name(name);
  if (wanted.name.find("::") != std::string::npos) {
    for (const auto& known : torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(wanted.name))) {
      if (known->schema().overload_name() != wanted.overload_name) continue;
      if (!can_be_called(*known))
        raise<InvalidArgument>("{} is a part of scripts, and no operator that a node can be", name);
      return find_in_interpreter(name, *known);
    }
  }
  raise_unknown(name);
}

std::vector<OperatorPtr> Operator::overloads(const std::string& name) {
  if (const auto* own = find_own(name)) return {*own};
  std::vector<OperatorPtr> found;
  if (name.find("::") != std::string::npos) {
    for (const auto& known : torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(name))) {
      const auto& schema = known->schema();
      if (schema.is_mutable() || !can_be_called(*known)) continue;
      auto op = find_in_dispatcher({schema.name(), schema.overload_name()});
      if (!op) op = find_in_interpreter(full_name({schema.name(), schema.overload_name()}), *known);
      found.push_back(std::move(op));
    }
  }
  if (found.empty()) found.push_back(find(name));  // which says what is wrong
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return numbers_taken(*a) < numbers_taken(*b); });
  return found;
}

}  // namespace muster::detail
