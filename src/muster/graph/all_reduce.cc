// All-reduce as nodes: each task adds up one block of all values, and the blocks go to all tasks.

#include <utility>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/graph.h"
#include "muster/graph/graph_node.h"

namespace muster {

namespace {

using detail::GraphData;
using detail::GraphNode;
using detail::raise;

// A node beside another one, wherever that is.
Output add_beside(GraphData& graph, const Output& other, const char* op,
                  const std::vector<Argument>& arguments, std::source_location where) {
  GraphNode& made = graph.make(detail::Operator::find(op), fmt::format("{}/all_reduce", other.get()->name),
                               /*is_name_given=*/false, where);
  made.colocated = other.get();
  made.device = other.get()->device;
  made.arguments = match_arguments(*made.op, arguments, {}).arguments;
  infer_outputs(made);
  return {&made, 0};
}

}  // namespace

std::vector<Output> all_reduce(const std::vector<Output>& values, std::source_location where) {
  const std::string subject = fmt::format("all_reduce ({})", detail::describe(where));
  if (values.empty()) raise<InvalidArgument>("{}: there are no values", subject);
  for (const auto& value : values) {
    if (!value.defined()) raise<InvalidArgument>("{}: a value is undefined", subject);
    if (value.get()->graph != values.front().get()->graph)
      raise<InvalidArgument>("{}: {} is of another graph than {}", subject, value.name(),
                             values.front().name());
    if (!value.shape().known())
      raise<InvalidArgument>("{}: the sizes of {} are not known before it is computed", subject,
                             value.name());
    if (value.dtype() != values.front().dtype() || value.shape() != values.front().shape())
      raise<InvalidArgument>("{}: {} and {} are of different types or sizes", subject, values.front().name(),
                             value.name());
  }
  GraphData& graph = *values.front().get()->graph;
  const auto tasks = static_cast<int64_t>(values.size());
  const std::string scope = std::exchange(graph.scope, "");
  const Scope restored([&graph, &scope] { graph.scope = scope; });

  std::vector<GraphNode*> blocks;
  for (const auto& value : values) {
    const Output flat = add_beside(graph, value, "aten::reshape", {value, std::vector<int64_t>{-1}}, where);
    blocks.push_back(
        add_beside(graph, value, "aten::tensor_split.sections", {flat, tasks, int64_t{0}}, where).get());
  }
  std::vector<Output> sums;
  for (int block = 0; block < tasks; ++block) {
    Output sum(blocks.front(), block);
    for (size_t task = 1; task < values.size(); ++task)
      sum = add_beside(graph, values[static_cast<size_t>(block)], "aten::add.Tensor",
                       {sum, Output(blocks[task], block)}, where);
    sums.push_back(sum);
  }
  std::vector<Output> results;
  for (const auto& value : values) {
    const Output whole = add_beside(graph, value, "aten::cat", {Argument(sums), int64_t{0}}, where);
    results.push_back(add_beside(graph, value, "aten::view_as", {whole, value}, where));
  }
  return results;
}

}  // namespace muster
