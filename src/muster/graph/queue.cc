#include "muster/queue.h"

#include <utility>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/graph/graph_node.h"

namespace muster {

using detail::GraphNode;
using detail::raise;

Queue::Queue(Graph& graph, const std::string& name, const QueueOptions& options, std::source_location where) {
  if (options.capacity < 1)
    raise<InvalidArgument>("the queue '{}' ({}) has a capacity of {}; expected 1 or more", name,
                           detail::describe(where), options.capacity);
  if (options.types.empty())
    raise<InvalidArgument>("the queue '{}' ({}) has no types: say of what its elements consist", name,
                           detail::describe(where));
  std::vector<int64_t> types;
  for (const auto type : options.types) types.push_back(static_cast<int64_t>(type));
  node_ = &graph.data().make(detail::Operator::find("muster::queue"), name, /*is_name_given=*/true, where);
  node_->arguments = {Argument(options.capacity), Argument(types)};
}

// A node on the queue's task, which knows its name, capacity and types.
GraphNode& Queue::make(const char* op, std::source_location where) const {
  const std::string name = std::string(op).substr(std::string(op).find("::") + 2);
  GraphNode& made = node_->graph->make(detail::Operator::find(op), fmt::format("{}/{}", node_->name, name),
                                       /*is_name_given=*/false, where);
  made.colocated = node_;
  made.device = node_->device;
  made.arguments = {Argument(node_->name), node_->arguments[0], node_->arguments[1]};
  return made;
}

Node Queue::enqueue(const std::vector<Output>& element, std::source_location where) const {
  const std::string subject =
      fmt::format("enqueue ({}), the queue '{}'", detail::describe(where), node_->name);
  const auto types = node_->arguments[1].value().toIntVector();
  if (element.size() != types.size())
    raise<InvalidArgument>("{}: {} tensors are given, where an element has {}", subject, element.size(),
                           types.size());
  for (size_t i = 0; i < element.size(); ++i) {
    if (!element[i].defined() || element[i].get()->graph != node_->graph)
      raise<InvalidArgument>("{}: tensor {} is undefined, or of another graph", subject, i);
    const auto type = static_cast<at::ScalarType>(types[i]);
    if (element[i].dtype().value_or(type) != type)
      raise<InvalidArgument>("{}: {} is of type {}, where the queue has {}", subject, element[i].name(),
                             c10::toString(*element[i].dtype()), c10::toString(type));
  }
  GraphNode& made = make("muster::enqueue", where);
  made.arguments.insert(made.arguments.begin(), Argument(element));
  return Node(&made);
}

std::vector<Output> Queue::dequeue(std::source_location where) const {
  GraphNode& made = make("muster::dequeue", where);
  detail::set_queue_outputs(made);
  std::vector<Output> results;
  for (int i = 0; i < static_cast<int>(made.outputs.size()); ++i) results.emplace_back(&made, i);
  return results;
}

Output Queue::size(std::source_location where) const {
  GraphNode& made = make("muster::queue_size", where);
  detail::set_queue_outputs(made);
  return {&made, 0};
}

Node Queue::close(std::source_location where) const {
  return Node(&make("muster::close_queue", where));
}

void detail::set_queue_outputs(GraphNode& node) {
  if (node.op->kind() == OperatorKind::kQueueSize) {
    set_output(node, at::kLong, Shape(at::IntArrayRef()));
    return;
  }
  node.outputs.clear();
  for (const int64_t type : node.arguments[2].value().toIntVector())
    node.outputs.push_back({.type = c10::TensorType::get(), .dtype = static_cast<at::ScalarType>(type)});
}

}  // namespace muster
