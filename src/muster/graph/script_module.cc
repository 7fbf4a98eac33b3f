#include "muster/graph/script_module.h"

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string_view>

#include <ATen/ops/empty.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/passes/lower_graph.h>
#include <torch/csrc/jit/serialization/import.h>

#include "muster/base/error.h"

namespace muster::detail {

namespace {

constexpr size_t kChecksumBytes = 8;

// FNV-1a, before the archive. libtorch reads what was damaged on the way, and may crash on it.
std::string checksum_of(std::string_view archive) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : archive) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  std::string bytes(kChecksumBytes, 0);
  for (size_t i = 0; i < kChecksumBytes; ++i) bytes[i] = static_cast<char>(hash >> (8 * i));
  return bytes;
}

}  // namespace

ScriptFunction function_of(const torch::jit::Module& module) {
  const auto method = module.find_method("forward");
  if (!method) throw InvalidArgument("the module has no function forward");
  const auto inlined = method->graph()->copy();
  torch::jit::Inline(*inlined);
  ScriptFunction function{.inputs = inlined->inputs().size() - 1};
  for (size_t i = 1; i < inlined->inputs().size(); ++i) {
    if (inlined->inputs()[i]->type()->kind() != c10::TypeKind::TensorType)
      raise<InvalidArgument>("argument {} of the module's function forward is no tensor", i);
  }
  auto [graph, values] = torch::jit::LowerGraph(*inlined, module._ivalue());
  for (const auto& value : values) {
    if (!value.isTensor())
      raise<InvalidArgument>("an attribute that the module uses is a {}, and no tensor", value.tagKind());
    function.parameters.push_back(value.toTensor());
  }
  if (graph->outputs().size() != 1) throw InvalidArgument("the module's function forward gives nothing");
  const auto type = graph->outputs().front()->type();
  std::vector<c10::TypePtr> results = {type};
  if (const auto tuple = type->cast<c10::TupleType>()) {
    results = tuple->elements().vec();
    function.gives_tuple = true;
  }
  for (const auto& each : results) {
    if (each->kind() != c10::TypeKind::TensorType)
      raise<InvalidArgument>("the module's function forward gives a {}, and no tensor",
                             each->annotation_str());
  }
  function.results = results.size();
  function.graph = std::move(graph);
  return function;
}

std::string code_of(const torch::jit::Module& module) {
  const torch::jit::Module copy = module.deepcopy();
  for (auto part : copy.modules()) {
    for (const auto& attribute : part.named_attributes(/*recurse=*/false)) {
      if (attribute.value.isTensor() && attribute.value.toTensor().defined())
        part.setattr(attribute.name, at::empty({0}, attribute.value.toTensor().options()));
    }
  }
  std::ostringstream code;
  copy.save(code);
  return checksum_of(code.str()) + code.str();
}

torch::jit::Module module_of_code(const std::string& code) {
  const std::string_view archive = std::string_view(code).substr(std::min(code.size(), kChecksumBytes));
  if (!code.starts_with(checksum_of(archive))) throw InvalidArgument("a module's code is damaged");
  try {
    std::istringstream stream{std::string(archive)};
    return torch::jit::load(stream, at::kCPU);
  } catch (const std::exception& error) {
    raise<InvalidArgument>("a module's code can't be read: {}", text_without_stack(error));
  }
}

void set_script_outputs(GraphNode& node, const std::string& subject) {
  const ScriptFunction function = function_of(module_of_code(node.arguments[2].value().toStringRef()));
  if (node.arguments[0].outputs().size() != function.inputs ||
      node.arguments[1].outputs().size() != function.parameters.size() || function.results == 0)
    raise<InvalidArgument>("{}: its module takes {} arguments and {} parameters; it is given {} and {}",
                           subject, function.inputs, function.parameters.size(),
                           node.arguments[0].outputs().size(), node.arguments[1].outputs().size());
  node.outputs.assign(function.results, {.type = c10::TensorType::get()});
}

}  // namespace muster::detail
