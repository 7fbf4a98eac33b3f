#include "muster/runtime/node_functions.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include "muster/base/error.h"
#include "muster/graph/graph_body.h"
#include "muster/graph/script_module.h"
#include "muster/runtime/executor.h"
#include "muster/runtime/tensor_queue.h"

namespace muster::detail {

namespace {

constexpr int64_t kMostPrinted = 8;  // elements of a tensor

StepFunction print(const GraphNode& node) {
  return [text = node.arguments[1].value().toStringRef()](torch::jit::Stack& stack, StepExchange*) {
    const at::Tensor value = stack.front().toTensor().detach();
    std::string elements;
    if (value.defined()) {
      const at::Tensor first = value.reshape(-1).slice(0, 0, kMostPrinted);
      for (int64_t i = 0; i < first.numel(); ++i) {
        const at::Scalar each = first[i].item();
        elements += ' ' + (each.isIntegral(/*includeBool=*/true) ? fmt::format("{}", each.toLong())
                           : each.isComplex() ? fmt::format("{}+{}i", each.toComplexDouble().real(),
                                                            each.toComplexDouble().imag())
                                              : fmt::format("{:g}", each.toDouble()));
      }
      if (value.numel() > kMostPrinted) elements += " ...";
    }
    // One call, so that lines of several tasks do not mix.
    fmt::print(stderr, "{}[{}]{}\n", text,
               value.defined() ? fmt::format("{}", fmt::join(value.sizes(), ", ")) : "", elements);
  };
}

// A branch or a loop, compiled. Shared by the copies of the function that holds it.
std::shared_ptr<Executor> executor_of(const std::string& text, Container& container,
                                      const CompileOptions& options) {
  const GraphBody body = GraphBody::parse(text);
  CompileOptions inside = options;
  inside.is_body = true;
  return std::make_shared<Executor>(
      std::make_shared<Program>(Signature{.feeds = body.inputs, .fetches = body.results}, container, inside));
}

bool is_true(const at::Tensor& value) {
  if (!value.defined() || value.numel() != 1)
    raise<InvalidArgument>("what decides has {} elements; expected one", value.defined() ? value.numel() : 0);
  return value.item().toBool();
}

c10::List<at::Tensor> list_of(const std::vector<c10::IValue>& values) {
  c10::List<at::Tensor> list;
  list.reserve(values.size());
  for (const auto& value : values) list.push_back(value.toTensor());
  return list;
}

StepFunction cond(const GraphNode& node, Container& container, const CompileOptions& options) {
  return [chosen = executor_of(node.arguments[2].value().toStringRef(), container, options),
          otherwise = executor_of(node.arguments[3].value().toStringRef(), container, options)](
             torch::jit::Stack& stack, StepExchange* others) {
    const bool decision = is_true(stack[0].toTensor());
    const auto captured = stack[1].toListRef().vec();
    stack.clear();
    stack.emplace_back(list_of((decision ? chosen : otherwise)->call(captured, others)));
  };
}

StepFunction while_loop(const GraphNode& node, Container& container, const CompileOptions& options) {
  return [condition = executor_of(node.arguments[2].value().toStringRef(), container, options),
          body = executor_of(node.arguments[3].value().toStringRef(), container, options)](
             torch::jit::Stack& stack, StepExchange* others) {
    auto variables = stack[0].toListRef().vec();
    const auto captured = stack[1].toListRef().vec();
    stack.clear();
    const auto with_captured = [&captured](std::vector<c10::IValue> values) {
      values.insert(values.end(), captured.begin(), captured.end());
      return values;
    };
    while (is_true(condition->call(with_captured(variables), others).front().toTensor())) {
      if (others != nullptr) others->check();
      variables = body->call(with_captured(std::move(variables)), others);
    }
    stack.emplace_back(list_of(variables));
  };
}

StepFunction script(const GraphNode& node) {
  const ScriptFunction function = function_of(module_of_code(node.arguments[2].value().toStringRef()));
  return [code = torch::jit::Code(function.graph, node.name), gives_tuple = function.gives_tuple](
             torch::jit::Stack& stack, StepExchange*) {
    torch::jit::Stack values = stack[0].toListRef().vec();
    const auto parameters = stack[1].toListRef();
    values.insert(values.end(), parameters.begin(), parameters.end());
    torch::jit::InterpreterState(code).run(values);
    stack.clear();
    stack.emplace_back(list_of(gives_tuple ? values.front().toTupleRef().elements().vec() : values));
  };
}

// A queue's name, capacity and types are the arguments from `first` on.
TensorQueue& queue_of(const GraphNode& node, size_t first, Container& container) {
  return container.queue(node.arguments[first].value().toStringRef(),
                         node.arguments[first + 1].value().toInt(),
                         node.arguments[first + 2].value().toIntVector());
}

std::function<void()> check_of(StepExchange* others) {
  return [others] {
    if (others != nullptr) others->check();
  };
}

}  // namespace

StepFunction node_function(const GraphNode& node, Container& container, const CompileOptions& options) {
  switch (node.op->kind()) {
    case OperatorKind::kPrint:
      return print(node);
    case OperatorKind::kCond:
      return cond(node, container, options);
    case OperatorKind::kWhileLoop:
      return while_loop(node, container, options);
    case OperatorKind::kScript:
      return script(node);
    case OperatorKind::kEnqueue:
      return [&queue = queue_of(node, 1, container)](torch::jit::Stack& stack, StepExchange* others) {
        const auto element = stack.front().toTensorVector();
        stack.clear();
        queue.put(element, check_of(others));
      };
    case OperatorKind::kDequeue:
      return [&queue = queue_of(node, 0, container)](torch::jit::Stack& stack, StepExchange* others) {
        stack.emplace_back(queue.take(check_of(others)));
      };
    case OperatorKind::kQueueSize:
      return [&queue = queue_of(node, 0, container)](torch::jit::Stack& stack, StepExchange*) {
        stack.emplace_back(at::scalar_tensor(queue.size(), at::TensorOptions(at::kLong)));
      };
    default:
      return [&queue = queue_of(node, 0, container)](torch::jit::Stack&, StepExchange*) { queue.close(); };
  }
}

}  // namespace muster::detail
