#include "muster/graph/signature.h"

#include <algorithm>
#include <set>
#include <utility>

#include "muster/base/error.h"

namespace muster::detail {

void check_signature(const Signature& signature, const GraphData& graph) {
  const auto check = [&graph](const GraphNode* node, const char* what) {
    if (node == nullptr) raise<InvalidArgument>("a {} is undefined", what);
    if (node->graph != &graph)
      raise<InvalidArgument>("the {} '{}' is of another graph than the session's", what, node->name);
  };
  for (const auto& output : signature.fetches) check(output.get(), "fetch");
  for (const auto& output : signature.feeds) check(output.get(), "feed");
  for (const auto& node : signature.targets) check(node.get(), "target");
}

std::vector<GraphNode*> needed_nodes(const Signature& signature) {
  std::set<std::pair<const GraphNode*, int>> fed;
  for (const auto& feed : signature.feeds) {
    if (!fed.emplace(feed.get(), feed.index()).second)
      raise<InvalidArgument>("'{}' is fed twice", feed.name());
  }
  std::vector<GraphNode*> nodes;
  std::vector<GraphNode*> left;
  std::vector<bool> seen;
  const auto need = [&](const Output& output) {
    if (!fed.contains({output.get(), output.index()})) left.push_back(output.get());
  };
  for (const auto& fetch : signature.fetches) need(fetch);
  for (const auto& target : signature.targets) left.push_back(target.get());
  while (!left.empty()) {
    GraphNode* node = left.back();
    left.pop_back();
    const auto id = static_cast<size_t>(node->id);
    if (seen.size() <= id) seen.resize(id + 1);
    if (seen[id]) continue;
    seen[id] = true;
    nodes.push_back(node);
    if (node->op->kind() == OperatorKind::kPlaceholder)
      raise<InvalidArgument>("{} needs a value: feed it", node->describe());
    if (node->op->kind() == OperatorKind::kGradient) {
      for (const auto& output : node->arguments[0].outputs()) {
        if (fed.contains({output.get(), output.index()}))
          raise<InvalidArgument>("'{}' can't be fed here: {} needs to know how it was computed",
                                 output.name(), node->describe());
      }
    }
    node->each_input(need);
    for (auto* before : node->control) left.push_back(before);
  }
  std::sort(nodes.begin(), nodes.end(), [](const auto* a, const auto* b) { return a->id < b->id; });
  return nodes;
}

}  // namespace muster::detail
