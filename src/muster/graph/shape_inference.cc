#include "muster/graph/shape_inference.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/graph/graph_node.h"

namespace muster::detail {

namespace {

bool same_for_all_batches(const Examples& examples) {
  const auto& first = examples.front();
  return std::all_of(examples.begin() + 1, examples.end(), [&first](const c10::IValue& other) {
    if (first.isTensor()) return other.isTensor() && first.toTensor().is_same(other.toTensor());
    return first.is(other) || (first.isInt() && other.isInt() && first.toInt() == other.toInt());
  });
}

// A tensor of the same sizes, strides and type without data.
at::Tensor without_data(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

// A list as an operator takes it, of examples for the size of batch number `batch`.
c10::IValue example_list(const Argument& argument, const c10::Argument& formal, size_t batch) {
  c10::TypePtr type = formal.type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  c10::impl::GenericList list(type->expectRef<c10::ListType>().getElementType());
  for (const auto& output : argument.outputs()) {
    if (output.defined()) {
      list.push_back((*info_of(output).examples)[batch]);
    } else {
      list.push_back(c10::IValue());
    }
  }
  return list;
}

c10::IValue example(const Argument& argument, const c10::Argument& formal, size_t batch) {
  if (argument.is_list()) return example_list(argument, formal, batch);
  if (!argument.is_value()) {
    const Output& output = argument.outputs().front();
    if (!output.defined()) return {};
    return (*info_of(output).examples)[batch];
  }
  // What makes a tensor from nothing makes one without data.
  if (formal.name() == "device" && argument.value().isNone()) return at::Device(at::kMeta);
  return argument.value();
}

// Whether an example could not be run because it has no data, which says nothing of the node.
bool is_for_want_of_data(const c10::Error& error) {
  if (dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr) return true;
  std::string text = error.what_without_backtrace();
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text.find("meta") != std::string::npos || text.find("not implemented") != std::string::npos;
}

bool is_same_for_all_batches(const GraphNode& node) {
  bool same = true;
  node.each_input(
      [&same](const Output& output) { same = same && same_for_all_batches(*info_of(output).examples); });
  return same;
}

// The results for one size of batch; empty if they can't be known.
std::optional<std::vector<c10::IValue>> run_example(const GraphNode& node, size_t batch) {
  const auto& formals = node.op->schema().arguments();
  std::vector<c10::IValue> arguments;
  for (size_t i = 0; i < formals.size(); ++i)
    arguments.push_back(example(node.arguments[i], formals[i], batch));
  try {
    const at::AutoDispatchBelowADInplaceOrView guard;  // nobody wants gradients of examples
    auto stack = arguments;
    try {
      node.op->call(stack);
      return stack;
    } catch (const c10::Error& error) {
      if (!is_for_want_of_data(error)) throw;
      return apply_shape_function(node.op->name(), arguments);
    }
  } catch (const std::exception& error) {
    raise<InvalidArgument>("{}{}: {}", node.describe(),
                           is_same_for_all_batches(node)
                               ? ""
                               : fmt::format(", tried with a batch of {}", kExampleBatches[batch]),
                           text_without_stack(error));
  }
}

bool has_examples(const GraphNode& node) {
  bool all = true;
  node.each_input([&all](const Output& output) { all = all && info_of(output).examples.has_value(); });
  return all;
}

// A list of tensors as a result is as many results.
void unpack_list(std::vector<c10::IValue>& results) {
  std::vector<c10::IValue> unpacked;
  for (auto& tensor : results.front().toTensorVector()) unpacked.emplace_back(std::move(tensor));
  results = std::move(unpacked);
}

void set_info(OutputInfo& info, Examples examples) {
  for (auto& each : examples) {
    if (each.isTensor() && each.toTensor().defined() && !each.toTensor().is_meta() &&
        each.toTensor().dim() > 0)
      each = without_data(each.toTensor());
  }
  if (examples.front().isTensor()) {
    if (!examples.front().toTensor().defined()) return;
    info.dtype = examples.front().toTensor().scalar_type();
    info.shape = shape_of(examples);
    if (!info.shape.known()) return;
  }
  info.examples = std::move(examples);
}

}  // namespace

Examples examples_of(at::ScalarType dtype, const Shape& shape) {
  Examples examples;
  const auto options = at::TensorOptions(dtype).device(at::kMeta);
  bool depends = false;
  for (size_t batch = 0; batch < examples.size(); ++batch) {
    if (batch > 0 && !depends) {
      examples[batch] = examples[0];
      continue;
    }
    std::vector<int64_t> sizes;
    for (const auto& size : shape.sizes()) {
      sizes.push_back(size.fixed + size.batches * kExampleBatches[batch]);
      depends = depends || size.batches != 0;
    }
    examples[batch] = at::empty(sizes, options);
  }
  return examples;
}

Shape shape_of(const Examples& examples) {
  const at::Tensor& first = examples[0].toTensor();
  const at::Tensor& second = examples[1].toTensor();
  const at::Tensor& third = examples[2].toTensor();
  if (first.dim() != second.dim() || first.dim() != third.dim()) return {};
  std::vector<Size> sizes;
  for (int64_t i = 0; i < first.dim(); ++i) {
    const int64_t growth = second.size(i) - first.size(i);
    const int64_t between = kExampleBatches[1] - kExampleBatches[0];
    Size size{.batches = growth / between};
    size.fixed = first.size(i) - size.batches * kExampleBatches[0];
    if (growth % between != 0 || third.size(i) != size.fixed + size.batches * kExampleBatches[2]) return {};
    sizes.push_back(size);
  }
  return Shape(std::move(sizes));
}

void infer_outputs(GraphNode& node, size_t listed) {
  const auto& schema = node.op->schema();
  const bool is_list = node.op->gives_list();
  if (!is_list) {
    for (const auto& result : schema.returns()) node.outputs.push_back({.type = result.type()});
  }
  std::vector<Examples> found;
  if (has_examples(node)) {
    const size_t batches = is_same_for_all_batches(node) ? 1 : kExampleBatches.size();
    for (size_t batch = 0; batch < batches; ++batch) {
      auto results = run_example(node, batch);
      if (!results) {
        found.clear();
        break;
      }
      if (is_list) unpack_list(*results);
      if (batch == 0) found.resize(results->size());
      if (results->size() != found.size()) {
        found.clear();
        break;
      }
      for (size_t i = 0; i < found.size(); ++i) found[i][batch] = (*results)[i];
    }
    if (batches == 1) {
      for (auto& examples : found) examples[1] = examples[2] = examples[0];
    }
  }
  if (is_list) {
    if (found.empty() && listed == 0)
      raise<InvalidArgument>(
          "{}: how many results it has depends on sizes that are not known; use "
          "placeholders with shapes",
          node.describe());
    node.outputs.resize(found.empty() ? listed : found.size(), {.type = c10::TensorType::get()});
  }
  for (size_t i = 0; i < found.size(); ++i) set_info(node.outputs[i], std::move(found[i]));
}

}  // namespace muster::detail
