#include "muster/graph/graph_body.h"

#include <utility>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/graph/graph_proto.h"

namespace muster::detail {

std::string GraphBody::to_text() const {
  SavedGraph saved = to_proto(graph);
  MUSTER_CHECK(saved.tensors.empty(), "a body holds a tensor of its own");
  for (const auto& result : results) {
    auto& proto = *saved.proto.add_results();
    proto.set_node(static_cast<uint32_t>(result.get()->id) + 1);
    proto.set_index(static_cast<uint32_t>(result.index()));
  }
  return saved.proto.SerializeAsString();
}

GraphBody GraphBody::parse(const std::string& text, int depth) {
  if (depth > kDeepestBody)
    raise<InvalidArgument>("branches and loops are more than {} deep inside each other", kDeepestBody);
  graph::GraphProto proto;
  if (!proto.ParseFromString(text)) throw InvalidArgument("a branch or a loop is no graph");
  GraphBody body{.graph = from_proto(proto, {}, depth)};
  for (auto& node : body.graph.data().nodes) {
    if (node.op->kind() == OperatorKind::kPlaceholder) {
      body.inputs.emplace_back(&node, 0);
    } else if (!node.op->is_differentiable() && node.op->kind() != OperatorKind::kConstant) {
      raise<InvalidArgument>("{} can't be in a branch or a loop", node.describe());
    }
  }
  for (const auto& result : proto.results()) {
    if (result.node() == 0 || result.node() > body.graph.size())
      raise<InvalidArgument>("a result of a branch or a loop is no node");
    const Output output =
        Node(&body.graph.data().nodes[result.node() - 1]).output(static_cast<int>(result.index()));
    if (output.get()->outputs[result.index()].type->kind() != c10::TypeKind::TensorType)
      raise<InvalidArgument>("a result of a branch or a loop, {}, is no tensor", output.name());
    body.results.push_back(output);
  }
  return body;
}

namespace {

// What is known of a value that is one or the other.
OutputInfo common(const Output& a, const Output& b, const std::string& subject) {
  OutputInfo info = info_of(a);
  const OutputInfo other = info_of(b);
  if (info.dtype && other.dtype && info.dtype != other.dtype)
    raise<InvalidArgument>("{}: {} is of type {}, and {} of type {}", subject, a.name(),
                           c10::toString(*info.dtype), b.name(), c10::toString(*other.dtype));
  if (!other.dtype) info.dtype = std::nullopt;
  if (info.shape != other.shape) info.shape = Shape();
  if (!info.dtype || !info.shape.known()) info.examples = std::nullopt;
  return info;
}

}  // namespace

void set_results_of_bodies(GraphNode& node, const std::string& subject, int depth) {
  const bool is_cond = node.op->kind() == OperatorKind::kCond;
  const auto& first = node.arguments[0].outputs();
  const auto& captured = node.arguments[1].outputs();
  const GraphBody one = GraphBody::parse(node.arguments[2].value().toStringRef(), depth);
  const GraphBody other = GraphBody::parse(node.arguments[3].value().toStringRef(), depth);
  const size_t inputs = captured.size() + (is_cond ? 0 : first.size());
  if (one.inputs.size() != inputs || other.inputs.size() != inputs)
    raise<InvalidArgument>("{}: its bodies take {} and {} values; they are given {}", subject,
                           one.inputs.size(), other.inputs.size(), inputs);
  node.outputs.clear();
  if (is_cond) {
    if (one.results.size() != other.results.size())
      raise<InvalidArgument>("{}: one branch gives {} results, the other {}", subject, one.results.size(),
                             other.results.size());
    for (size_t i = 0; i < one.results.size(); ++i)
      node.outputs.push_back(common(one.results[i], other.results[i], subject));
  } else {
    if (one.results.size() != 1)
      raise<InvalidArgument>("{}: its condition gives {} results; expected one", subject, one.results.size());
    if (other.results.size() != first.size())
      raise<InvalidArgument>("{}: its body gives {} results for {} loop variables", subject,
                             other.results.size(), first.size());
    for (size_t i = 0; i < first.size(); ++i)
      node.outputs.push_back(common(first[i], other.results[i], subject));
  }
  if (node.outputs.empty()) raise<InvalidArgument>("{}: it gives no results", subject);
}

}  // namespace muster::detail
