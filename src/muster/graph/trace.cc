#include "muster/trace.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/serialization/import.h>

#include "muster/base/error.h"
#include "muster/graph/graph_node.h"
#include "muster/graph/interpreter_graph.h"

namespace muster {

namespace {

using detail::raise;

// What a module's forward function changes besides its results: restored when this goes.
class ModuleState {
 public:
  explicit ModuleState(torch::nn::Module& module) {
    for (const auto& tensor : module.parameters()) keep(tensor);
    for (const auto& tensor : module.buffers()) keep(tensor);
    auto generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    random_ = generator.get_state();
  }
  ModuleState(const ModuleState&) = delete;
  ModuleState& operator=(const ModuleState&) = delete;
  ~ModuleState() {
    const torch::NoGradGuard guard;
    for (auto& [tensor, copy] : copies_) {
      if (!tensor.equal(copy)) tensor.copy_(copy);
    }
    auto generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_state(random_);
  }

 private:
  void keep(const at::Tensor& tensor) {
    if (tensor.defined()) copies_.emplace_back(tensor, tensor.detach().clone());
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
  at::Tensor random_;
};

// The first of a graph's inputs are the function's, the others the module's parameters and buffers.
std::shared_ptr<torch::jit::Graph> traced(torch::nn::Module& module, const ForwardFunction& forward,
                                          const std::vector<at::Tensor>& examples) {
  const ModuleState state(module);
  torch::jit::Stack stack(examples.begin(), examples.end());
  const auto run = [&](const torch::jit::Stack& inputs) {
    const auto& tracing = torch::jit::tracer::getTracingState();
    const auto add_input = [&tracing](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      torch::jit::Value* value = tracing->graph->addInput();
      value->setType(c10::TensorType::get());
      torch::jit::tracer::setValueTrace(tensor, value);
    };
    for (const auto& entry : module.named_parameters()) add_input(entry.value());
    for (const auto& entry : module.named_buffers()) add_input(entry.value());
    std::vector<at::Tensor> tensors;
    for (const auto& input : inputs) tensors.push_back(input.toTensor());
    torch::jit::Stack results;
    for (auto& result : forward(tensors)) results.emplace_back(std::move(result));
    return results;
  };
  const auto result = torch::jit::tracer::trace(
      std::move(stack), run, [](const torch::autograd::Variable&) { return std::string(); });
  return result.first->graph;
}

// The constants in which two traces differ, as functions of the size of the batch; and everything else must
// be the same. `small` and `large` are the batches of the two.
detail::BatchConstants compared(const torch::jit::Graph& first, const torch::jit::Graph& second,
                                int64_t small, int64_t large, std::source_location where) {
  detail::BatchConstants constants;
  const auto refuse = [&where](const std::string& why) {
    raise<InvalidArgument>(
        "the module ({}) does something else when the batch is larger, which a trace can't hold: {}",
        detail::describe(where), why);
  };
  auto other = second.nodes().begin();
  for (const auto* node : first.nodes()) {
    if (other == second.nodes().end())
      refuse(fmt::format("{} only with the smaller", node->kind().toQualString()));
    if (node->kind() != other->kind() || node->inputs().size() != other->inputs().size())
      refuse(fmt::format("{} becomes {}", node->kind().toQualString(), other->kind().toQualString()));
    if (node->kind() == c10::prim::Constant) {
      const auto value = torch::jit::toIValue(node->output());
      const auto grown = torch::jit::toIValue(other->output());
      if (value && grown && value->isInt() && grown->isInt() && value->toInt() != grown->toInt()) {
        const int64_t growth = grown->toInt() - value->toInt();
        if (growth % (large - small) != 0)
          refuse(fmt::format("a number is {} with a batch of {}, and {} with one of {}", value->toInt(),
                             small, grown->toInt(), large));
        const int64_t batches = growth / (large - small);
        constants[node->output()] = {.fixed = value->toInt() - batches * small, .batches = batches};
      } else if (value && grown && value->isDouble() && grown->isDouble() &&
                 value->toDouble() != grown->toDouble()) {
        refuse(fmt::format("a number is {} with a batch of {}, and {} with one of {}", value->toDouble(),
                           small, grown->toDouble(), large));
      }
    }
    ++other;
  }
  if (other != second.nodes().end())
    refuse(fmt::format("{} only with the larger", other->kind().toQualString()));
  return constants;
}

Shape open_shape(const at::Tensor& example) {
  std::vector<int64_t> sizes = example.sizes().vec();
  if (!sizes.empty()) sizes.front() = kBatch;
  return Shape(at::IntArrayRef(sizes));
}

// The size of the batch that all examples have, if they have dimensions.
std::optional<int64_t> batch_of(const std::vector<at::Tensor>& examples, std::source_location where) {
  std::optional<int64_t> batch;
  for (const auto& example : examples) {
    if (!example.defined())
      raise<InvalidArgument>("trace ({}): an example is undefined", detail::describe(where));
    if (example.dim() == 0) continue;
    if (example.size(0) == 0)
      raise<InvalidArgument>("trace ({}): an example is a batch of 0 samples", detail::describe(where));
    if (batch.value_or(example.size(0)) != example.size(0))
      raise<InvalidArgument>("trace ({}): examples are batches of {} and of {} samples",
                             detail::describe(where), *batch, example.size(0));
    batch = example.size(0);
  }
  return batch;
}

std::vector<Output> placeholders(Graph& graph, const std::vector<at::Tensor>& examples,
                                 const std::string& name, std::source_location where) {
  std::vector<Output> made;
  for (const auto& example : examples) {
    const std::string base = name.empty() ? "input" : name + "/input";
    std::string unique = base;
    for (int i = 1; graph.find(unique).defined(); ++i) unique = fmt::format("{}_{}", base, i);
    made.push_back(graph.placeholder(unique, example.scalar_type(), open_shape(example), where));
  }
  return made;
}

}  // namespace

TracedModule trace_function(Graph& graph, torch::nn::Module& module, const ForwardFunction& forward,
                            const std::vector<at::Tensor>& examples, const std::string& name,
                            std::source_location where) {
  const auto batch = batch_of(examples, where);
  const auto first = traced(module, forward, examples);
  TracedModule result;
  result.inputs = placeholders(graph, examples, name, where);
  detail::InterpreterGraphImporter importer(graph, name, where);
  if (batch) {
    std::vector<at::Tensor> larger;
    for (const auto& example : examples)
      larger.push_back(example.dim() == 0 ? example : at::cat({example, example}));
    const auto second = traced(module, forward, larger);
    const auto input = std::find_if(result.inputs.begin(), result.inputs.end(),
                                    [](const Output& each) { return !each.shape().sizes().empty(); });
    importer.set_batch(compared(*first, *second, *batch, 2 * *batch, where), *input);
  }
  const auto inputs = first->inputs();
  for (size_t i = 0; i < examples.size(); ++i) importer.bind(inputs[i], Argument(result.inputs[i]));
  size_t next = examples.size();
  for (const auto& entry : module.named_parameters()) {
    if (entry.value().defined())
      importer.bind(inputs[next++],
                    Argument(importer.variable(entry.key(), entry.value(), entry.value().requires_grad())));
  }
  for (const auto& entry : module.named_buffers()) {
    if (entry.value().defined())
      importer.bind(inputs[next++],
                    Argument(importer.variable(entry.key(), entry.value(), /*trainable=*/false)));
  }
  result.outputs = importer.import(*first);
  return result;
}

TracedModule import_module(Graph& graph, const std::string& file, const std::vector<at::Tensor>& examples,
                           const std::string& name, std::source_location where) {
  static_cast<void>(batch_of(examples, where));
  std::optional<torch::jit::Module> module;
  try {
    module.emplace(torch::jit::load(file, at::kCPU));
  } catch (const std::exception& error) {
    raise<InvalidArgument>("'{}' ({}) can't be read as a TorchScript file: {}", file, detail::describe(where),
                           detail::text_without_stack(error));
  }
  auto method = module->find_method("forward");
  if (!method) raise<InvalidArgument>("'{}' ({}) has no function forward", file, detail::describe(where));
  const auto inlined = method->graph()->copy();
  torch::jit::Inline(*inlined);
  const auto inputs = inlined->inputs();
  if (inputs.size() != examples.size() + 1)
    raise<InvalidArgument>("'{}' ({}) takes {} arguments; {} examples are given", file,
                           detail::describe(where), inputs.size() - 1, examples.size());
  TracedModule result;
  result.inputs = placeholders(graph, examples, name, where);
  detail::InterpreterGraphImporter importer(graph, name, where);
  importer.bind_module(inputs[0], "", *module);
  for (size_t i = 0; i < examples.size(); ++i) importer.bind(inputs[i + 1], Argument(result.inputs[i]));
  result.outputs = importer.import(*inlined);
  return result;
}

}  // namespace muster
