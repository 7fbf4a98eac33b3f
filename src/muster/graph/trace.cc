#include "muster/trace.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/real.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/nn/modules/batchnorm.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/graph/graph_node.h"
#include "muster/graph/interpreter_graph.h"
#include "muster/graph/script_module.h"

namespace muster {

namespace {

using detail::raise;

// A parameter or buffer of a module, by its first name where it has several.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  bool is_parameter = false;
};

std::vector<NamedTensor> tensors_of(torch::nn::Module& module) {
  std::vector<NamedTensor> tensors;
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto add = [&](const auto& entry, bool is_parameter) {
    if (entry.value().defined() && seen.insert(entry.value().unsafeGetTensorImpl()).second)
      tensors.push_back({entry.key(), entry.value(), is_parameter});
  };
  for (const auto& entry : module.named_parameters()) add(entry, true);
  for (const auto& entry : module.named_buffers()) add(entry, false);
  return tensors;
}

// What a module's forward function changes besides its results: restored when this goes.
class ModuleState {
 public:
  explicit ModuleState(const std::vector<NamedTensor>& tensors) {
    for (const auto& [name, tensor, is_parameter] : tensors)
      copies_.push_back({name, tensor, tensor.detach().clone()});
    auto generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    random_ = generator.get_state();
  }
  ModuleState(const ModuleState&) = delete;
  ModuleState& operator=(const ModuleState&) = delete;
  ~ModuleState() {
    const torch::NoGradGuard guard;
    for (auto& [name, tensor, copy] : copies_) {
      if (!is_same(tensor, copy)) tensor.copy_(copy);
    }
    auto generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_state(random_);
  }

  std::vector<std::string> changed() const {
    std::vector<std::string> names;
    for (const auto& [name, tensor, copy] : copies_) {
      if (!is_same(tensor, copy)) names.push_back(name);
    }
    return names;
  }

 private:
  struct Copy {
    std::string name;
    at::Tensor tensor;
    at::Tensor copy;
  };

  static bool is_same(const at::Tensor& tensor, const at::Tensor& copy) {
    return tensor.sizes().equals(copy.sizes()) && tensor.detach().equal(copy);
  }

  std::vector<Copy> copies_;
  at::Tensor random_;
};

struct Trace {
  std::shared_ptr<torch::jit::Graph> graph;  // libtorch hands it out shared
  std::vector<std::string> changed;          // parameters and buffers
};

// The first of a graph's inputs are the function's, the others the module's parameters and buffers.
Trace traced(const std::vector<NamedTensor>& module, const ForwardFunction& forward,
             const std::vector<at::Tensor>& examples) {
  const ModuleState state(module);
  torch::jit::Stack stack(examples.begin(), examples.end());
  const auto run = [&](const torch::jit::Stack& inputs) {
    const auto& tracing = torch::jit::tracer::getTracingState();
    for (const auto& [name, tensor, is_parameter] : module) {
      torch::jit::Value* value = tracing->graph->addInput();
      value->setType(c10::TensorType::get());
      torch::jit::tracer::setValueTrace(tensor, value);
    }
    std::vector<at::Tensor> tensors;
    for (const auto& input : inputs) tensors.push_back(input.toTensor());
    torch::jit::Stack results;
    for (auto& result : forward(tensors)) results.emplace_back(std::move(result));
    return results;
  };
  const auto result = torch::jit::tracer::trace(
      std::move(stack), run, [](const torch::autograd::Variable&) { return std::string(); });
  return {result.first->graph, state.changed()};
}

// Those of the parameters that the module uses without a derivative, which a trace does not show.
std::unordered_set<std::string> used_without_gradient(const std::vector<NamedTensor>& module,
                                                      const ForwardFunction& forward,
                                                      const std::vector<at::Tensor>& examples,
                                                      const Trace& trace) {
  const ModuleState state(module);
  const torch::AutoGradMode gradients(true);
  at::Tensor total;
  for (const auto& result : forward(examples)) {
    if (!result.defined() || !result.requires_grad()) continue;
    const at::Tensor sum = at::isComplexType(result.scalar_type()) ? at::real(result).sum() : result.sum();
    total = total.defined() ? total + sum : sum;
  }
  if (!total.defined()) return {};
  std::vector<size_t> numbers;
  torch::autograd::variable_list parameters;
  for (size_t i = 0; i < module.size(); ++i) {
    const bool is_used = !trace.graph->inputs()[examples.size() + i]->uses().empty();
    if (!module[i].tensor.requires_grad() || !is_used) continue;
    numbers.push_back(i);
    parameters.push_back(module[i].tensor);
  }
  std::unordered_set<std::string> names;
  if (parameters.empty()) return names;
  const auto found = torch::autograd::grad({total}, parameters, {}, /*retain_graph=*/false,
                                           /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i].defined()) names.insert(module[numbers[i]].name);
  }
  return names;
}

// Whose factor is 1 over the number of batches so far, which a trace takes for a constant.
void refuse_cumulative_averages(const torch::nn::Module& module, std::source_location where) {
  const auto check_norm = [&where](const std::string& name, const auto* norm) {
    if (norm == nullptr || !norm->is_training() || norm->options.momentum().has_value() ||
        !norm->options.track_running_stats())
      return;
    raise<InvalidArgument>(
        "the module ({}): '{}' keeps the average of all batches (momentum nullopt), which a trace can't "
        "hold: give it a momentum",
        detail::describe(where), name);
  };
  const auto check = [&check_norm](const std::string& name, const torch::nn::Module& each) {
    check_norm(name, dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&each));
    check_norm(name, dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&each));
    check_norm(name, dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&each));
  };
  check("BatchNorm", module);  // which may be on the stack, where libtorch can't list it
  for (const auto& entry : module.named_modules("", /*include_self=*/false))
    check(entry.key(), *entry.value());
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

// A batch of so many samples, of the example's.
at::Tensor repeated(const at::Tensor& example, int64_t size) {
  const int64_t copies = (size + example.size(0) - 1) / example.size(0);
  return at::cat(std::vector<at::Tensor>(static_cast<size_t>(copies), example)).slice(0, 0, size);
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
  refuse_cumulative_averages(module, where);
  const auto tensors = tensors_of(module);
  const Trace trace = traced(tensors, forward, examples);
  const auto& first = trace.graph;
  TracedModule result;
  result.inputs = placeholders(graph, examples, name, where);
  detail::InterpreterGraphImporter importer(graph, name, where);
  if (batch) {
    // Twice as large, and larger by far and odd: a rule that fits two sizes by chance does not fit three.
    std::optional<detail::BatchConstants> constants;
    for (const int64_t size : {2 * *batch, 4 * *batch + 3}) {
      std::vector<at::Tensor> larger;
      for (const auto& example : examples)
        larger.push_back(example.dim() == 0 ? example : repeated(example, size));
      const Trace other = traced(tensors, forward, larger);
      auto found = compared(*first, *other.graph, *batch, size, where);
      if (constants && *constants != found)
        raise<InvalidArgument>(
            "the module ({}) does something else when the batch is larger, which a trace can't hold: a "
            "number grows with it, but not as a multiple of it and a constant",
            detail::describe(where));
      constants = std::move(found);
    }
    const auto input = std::find_if(result.inputs.begin(), result.inputs.end(),
                                    [](const Output& each) { return !each.shape().sizes().empty(); });
    importer.set_batch(std::move(*constants), *input);
  }
  const auto inputs = first->inputs();
  for (size_t i = 0; i < examples.size(); ++i) importer.bind(inputs[i], Argument(result.inputs[i]));
  const auto fixed = used_without_gradient(tensors, forward, examples, trace);
  for (const auto& each : fixed)
    detail::log_warning("the module ({}) uses '{}' without a derivative: minimize() leaves it alone",
                        detail::describe(where), each);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [path, tensor, is_parameter] = tensors[i];
    const bool trainable = is_parameter && tensor.requires_grad() && !fixed.contains(path);
    importer.bind(inputs[examples.size() + i], Argument(importer.variable(path, tensor, trainable)));
  }
  result.outputs = importer.import(*first);
  const auto known = importer.changed_variables();
  for (const auto& changed : trace.changed) {
    if (!known.contains(name.empty() ? changed : fmt::format("{}.{}", name, changed)))
      raise<InvalidArgument>(
          "the module ({}) changes '{}' where a trace does not see it, as through .data() or set_data(): "
          "change it by an operator, as copy_()",
          detail::describe(where), changed);
  }
  return result;
}

namespace {

torch::jit::Module load_script(const std::string& file, std::source_location where) {
  try {
    return torch::jit::load(file, at::kCPU);
  } catch (const std::exception& error) {
    raise<InvalidArgument>("'{}' ({}) can't be read as a TorchScript file: {}", file, detail::describe(where),
                           detail::text_without_stack(error));
  }
}

}  // namespace

TracedModule import_module(Graph& graph, const std::string& file, const std::vector<at::Tensor>& examples,
                           const std::string& name, std::source_location where) {
  static_cast<void>(batch_of(examples, where));
  const torch::jit::Module module = load_script(file, where);
  const auto method = module.find_method("forward");
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
  importer.bind_module(inputs[0], "", module);
  for (size_t i = 0; i < examples.size(); ++i) importer.bind(inputs[i + 1], Argument(result.inputs[i]));
  result.outputs = importer.import(*inlined);
  return result;
}

TracedModule import_as_one_node(Graph& graph, const std::string& file,
                                const std::vector<at::Tensor>& examples, const std::string& name,
                                std::source_location where) {
  static_cast<void>(batch_of(examples, where));
  const torch::jit::Module module = load_script(file, where);
  const std::string subject = fmt::format("'{}' ({})", file, detail::describe(where));
  std::optional<detail::ScriptFunction> function;
  try {
    function = detail::function_of(module);
  } catch (const InvalidArgument& error) {
    raise<InvalidArgument>("{}: {}", subject, error.what());
  }
  TracedModule result;
  result.inputs = placeholders(graph, examples, name, where);
  detail::InterpreterGraphImporter importer(graph, name, where);
  std::vector<Output> parameters;
  for (const auto& parameter : function->parameters) {
    for (const auto& known : module.named_attributes()) {
      if (!known.value.isTensor() || !known.value.toTensor().is_same(parameter)) continue;
      parameters.push_back(importer.variable(known.name, parameter, parameter.requires_grad()));
      break;
    }
  }
  detail::GraphNode& node = graph.data().make(detail::Operator::find("muster::script"),
                                              name.empty() ? "script" : name, /*is_name_given=*/false, where);
  node.arguments = {Argument(result.inputs), Argument(parameters), Argument(detail::code_of(module))};
  detail::set_script_outputs(node, subject);
  for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i) result.outputs.emplace_back(&node, i);
  return result;
}

}  // namespace muster
