#include "graph/placed_graph.h"

#include <algorithm>
#include <map>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/cluster/cluster_spec.h"
#include "muster/server.h"

namespace muster::detail {

namespace {

// Values are compared for a batch of this size where none is given.
constexpr int64_t kSomeBatch = 64;

Signature signature_of(const Graph& graph, const PlaceRequest& request) {
  check_is_whole(graph.data());
  Signature signature;
  for (const auto& node : graph.nodes()) {
    if (node.get()->op->kind() == OperatorKind::kPlaceholder) signature.feeds.push_back(node.output());
  }
  for (const auto& name : request.fetches) signature.fetches.push_back(graph.output(name));
  for (const auto& name : request.targets) {
    const Node node = graph.find(name);
    if (!node.defined()) {
      std::vector<std::string> known;
      for (const auto& each : graph.nodes()) known.push_back(each.name());
      raise<InvalidArgument>("--target {}: the graph has no node of this name{}", name,
                             suggestion(name, known));
    }
    signature.targets.push_back(node);
  }
  if (request.fetches.empty() && request.targets.empty()) {
    for (const auto& node : graph.nodes()) {
      if (node.get()->op->kind() != OperatorKind::kPlaceholder) signature.targets.push_back(node);
    }
  }
  // A target that is fed runs nowhere.
  std::erase_if(signature.targets,
                [](const Node& node) { return node.get()->op->kind() == OperatorKind::kPlaceholder; });
  return signature;
}

PlacementOptions placement_options(const PlaceRequest& request) {
  static_cast<void>(muster::ClusterSpec::parse(request.cluster));  // which servers would refuse
  PlacementOptions options{.tasks = ClusterSpec::parse(request.cluster).tasks(),
                           .soft = request.soft_placement};
  if (options.tasks.empty()) raise<InvalidArgument>("--cluster '{}' has no task", request.cluster);
  if (request.session_task.empty()) return options;
  const TaskName wanted = TaskName::parse(request.session_task);
  const auto found = std::find(options.tasks.begin(), options.tasks.end(), wanted);
  if (found == options.tasks.end()) {
    std::string there;
    for (const auto& task : options.tasks) there += (there.empty() ? "" : ", ") + task.short_name();
    raise<InvalidArgument>("--session-task {}: the cluster has no such task; it has {}", request.session_task,
                           there);
  }
  options.default_task = static_cast<size_t>(found - options.tasks.begin());
  return options;
}

}  // namespace

PlacedGraph::PlacedGraph(const Graph& graph, const PlaceRequest& request)
    : signature_(signature_of(graph, request)),
      nodes_(needed_nodes(signature_)),
      placement_(place(nodes_, placement_options(request))),
      cut_(partition(signature_, nodes_, placement_)) {
  std::map<size_t, std::vector<size_t>> tasks;  // by the number of the feed
  for (const auto& part : cut_.parts) {
    for (const size_t feed : part.feeds) tasks[feed].push_back(part.task);
  }
  for (auto& [feed, found] : tasks) feeds_.emplace_back(signature_.feeds[feed], std::move(found));
}

std::vector<PlacedGraph::Task> PlacedGraph::figures() const {
  std::vector<Task> all(tasks().size());
  for (const auto* node : nodes_) {
    Task& task = all[placement_.task(*node)];
    ++task.nodes;
    if (node->op->kind() == OperatorKind::kConstant) task.constants += ValueBytes::of(node->outputs.front());
  }
  // A variable that is only changed is on its task too, though nobody reads it.
  for (const auto& part : cut_.parts) {
    for (const auto* variable : part.graph.data().variables)
      all[part.task].variables += ValueBytes::of(variable->outputs.front());
  }
  return all;
}

std::vector<PlacedGraph::Route> PlacedGraph::routes() const {
  std::map<std::pair<size_t, size_t>, Route> found;
  for (const auto& edge : cut_.edges) {
    Route& route = found[{edge.from, edge.to}];
    route.from = edge.from;
    route.to = edge.to;
    const GraphNode& node = *edge.output.get();
    if (edge.is_control) {
      route.crossings.push_back({.name = "^" + node.name});
    } else {
      route.crossings.push_back(
          {.name = edge.output.name(),
           .bytes = ValueBytes::of(node.outputs[static_cast<size_t>(edge.output.index())])});
      route.bytes += route.crossings.back().bytes;
    }
  }
  const auto is_larger = [](const auto& a, const auto& b) {
    return a.bytes.at(kSomeBatch) > b.bytes.at(kSomeBatch);
  };
  std::vector<Route> routes;
  for (auto& [key, route] : found) {
    std::stable_sort(route.crossings.begin(), route.crossings.end(), is_larger);
    routes.push_back(std::move(route));
  }
  std::stable_sort(routes.begin(), routes.end(), is_larger);
  return routes;
}

}  // namespace muster::detail
