#include "muster/runtime/replica_functions.h"

#include <utility>

#include "muster/base/error.h"
#include "muster/optim/rule_text.h"
#include "muster/runtime/executor.h"
#include "muster/runtime/replica_coordinator.h"

namespace muster::detail {

namespace {

// A session in this process has one run at a time.
uint64_t step_of(const StepExchange* others) {
  return others == nullptr ? 0 : others->step();
}

// The one argument, which is taken from the stack.
at::Tensor take_tensor(torch::jit::Stack& stack) {
  if (stack.empty() || !stack.front().isTensor() || !stack.front().toTensor().defined())
    throw InvalidArgument("it is given no tensor");
  at::Tensor taken = std::move(stack.front()).toTensor();
  stack.clear();
  return taken;
}

// Arguments of muster::push and muster::next_token.
constexpr size_t kReplica = 2;
constexpr size_t kReplicas = 3;
constexpr size_t kAggregate = 4;
constexpr size_t kGroup = 5;

int64_t number(const GraphNode& node, size_t argument) {
  return node.arguments[argument].value().toInt();
}

const std::string& text(const GraphNode& node, size_t argument) {
  return node.arguments[argument].value().toStringRef();
}

TaskVariable& variable_of(const GraphNode& node, Container& container) {
  return container.get(*node.arguments[0].outputs().front().get());
}

ReplicaCoordinator& coordinator_of(const GraphNode& node, Container& container) {
  return container.replicas().coordinator(text(node, kGroup),
                                          replica_options(number(node, kReplicas), number(node, kAggregate)),
                                          variable_of(node, container));
}

StepFunction accumulate(const GraphNode& node, Container& container) {
  const int64_t replica = number(node, 2);
  Accumulator& accumulator = container.replicas().accumulator(text(node, 3), variable_of(node, container));
  return [replica, &accumulator](torch::jit::Stack& stack, StepExchange* others) {
    accumulator.keep(static_cast<int>(replica), step_of(others), take_tensor(stack));
  };
}

StepFunction push(const GraphNode& node, Container& container, uint64_t session) {
  ReplicaCoordinator& coordinator = coordinator_of(node, container);
  return [&coordinator, replica = number(node, kReplica), session](torch::jit::Stack& stack,
                                                                   StepExchange* others) {
    const double lr = rate_of(take_tensor(stack));
    stack.emplace_back(
        pack(coordinator.push({.worker = replica, .session = session, .step = step_of(others)}, lr)));
  };
}

StepFunction carry_out(const GraphNode& node, Container& container) {
  Accumulator& accumulator = container.replicas().accumulator(text(node, 3), variable_of(node, container));
  return [rule = parse_rule(text(node, 2)), &accumulator](torch::jit::Stack& stack, StepExchange*) {
    accumulator.carry_out(unpack(take_tensor(stack)), *rule);
  };
}

StepFunction next_token(const GraphNode& node, Container& container, uint64_t session) {
  ReplicaCoordinator& coordinator = coordinator_of(node, container);
  return [&coordinator, replica = number(node, kReplica), session,
          &global_step = variable_of(node, container)](torch::jit::Stack& stack, StepExchange* others) {
    const ReplicaCoordinator::Run run{.worker = replica, .session = session, .step = step_of(others)};
    if (!stack.empty()) {
      const auto done = unpack(take_tensor(stack)).commands;
      coordinator.carried_out(run, done.empty() ? 0 : done.back().number);
    }
    coordinator.wait(run, [others] {
      if (others != nullptr) others->check();
    });
    stack.emplace_back(global_step.read());
  };
}

}  // namespace

StepFunction replica_function(const GraphNode& node, Container& container, uint64_t session) {
  switch (node.op->kind()) {
    case OperatorKind::kAccumulate:
      return accumulate(node, container);
    case OperatorKind::kPush:
      return push(node, container, session);
    case OperatorKind::kCarryOut:
      return carry_out(node, container);
    default:
      return next_token(node, container, session);
  }
}

Node node_that_enters(const Output& step) {
  const GraphNode& node = *step.get();
  if (node.op->kind() != OperatorKind::kNextToken) return {};
  const auto found = node.graph->names.find(text(node, kGroup));
  return found == node.graph->names.end() ? Node() : Node(found->second);
}

}  // namespace muster::detail
