// The placed graph as text and as JSON.

#include "graph/placed_graph.h"
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "muster/graph/graph_node.h"

namespace muster::detail {

namespace {

using Json = nlohmann::ordered_json;

// A number for a batch; for any batch, what the powers of its size are multiplied with. Null: not known.
Json json_of(const ValueBytes& bytes, std::optional<int64_t> batch) {
  if (bytes.unknown() > 0) return nullptr;
  if (batch) return static_cast<int64_t>(bytes.at(*batch));
  return bytes.coefficients().empty() ? Json::array({0}) : Json(bytes.coefficients());
}

std::string edges_text(size_t count) {
  return count == 1 ? "1 edge" : fmt::format("{} edges", count);
}

std::vector<std::string> short_names(const std::vector<TaskName>& tasks, const std::vector<size_t>& numbers) {
  std::vector<std::string> names;
  for (const size_t number : numbers) names.push_back(tasks[number].short_name());
  return names;
}

}  // namespace

std::string PlacedGraph::to_text(std::optional<int64_t> batch) const {
  std::string text;
  for (const auto& [feed, fed] : feeds_)
    text += fmt::format("{}: ({}): fed to {}\n", printable(feed.get()->name), feed.get()->op->name(),
                        fmt::join(short_names(tasks(), fed), ", "));
  for (const auto* node : nodes_)
    text += fmt::format("{}: ({}): {}\n", printable(node->name), node->op->name(), placement_.device(*node));

  const auto figures_of_tasks = figures();
  text += fmt::format("\n{:<16} {:>6}  {:>12}  {:>12}\n", "task", "nodes", "variables", "constants");
  Task total;
  const auto add_task = [&](const std::string& name, const Task& task) {
    text += fmt::format("{:<16} {:>6}  {:>12}  {:>12}\n", name, task.nodes, task.variables.to_string(batch),
                        task.constants.to_string(batch));
  };
  for (size_t i = 0; i < tasks().size(); ++i) {
    add_task(tasks()[i].short_name(), figures_of_tasks[i]);
    total.nodes += figures_of_tasks[i].nodes;
    total.variables += figures_of_tasks[i].variables;
    total.constants += figures_of_tasks[i].constants;
  }
  add_task("all", total);

  const auto all = routes();
  if (all.empty()) return text + "\nNothing goes from task to task.\n";
  size_t edges = 0;
  ValueBytes bytes;
  for (const auto& route : all) {
    edges += route.crossings.size();
    bytes += route.bytes;
    text += fmt::format("\n{} to {}: {} in {}\n", tasks()[route.from].short_name(),
                        tasks()[route.to].short_name(), route.bytes.to_string(batch),
                        edges_text(route.crossings.size()));
    for (const auto& crossing : route.crossings)
      text += fmt::format("  {:>12}  {}\n", crossing.bytes.to_string(batch), printable(crossing.name));
  }
  return text + fmt::format("\nFrom task to task: {} in {}.\n", bytes.to_string(batch), edges_text(edges));
}

std::string PlacedGraph::to_json(std::optional<int64_t> batch) const {
  Json json;
  if (batch) json["batch"] = *batch;
  json["nodes"] = Json::array();
  for (const auto* node : nodes_)
    json["nodes"].push_back({{"name", node->name},
                             {"op", node->op->name()},
                             {"task", tasks()[task(*node)].short_name()},
                             {"device", placement_.device(*node)}});
  json["feeds"] = Json::array();
  for (const auto& [feed, fed] : feeds_) {
    const ValueBytes bytes = ValueBytes::of(feed.get()->outputs.front());
    json["feeds"].push_back(
        {{"name", feed.name()}, {"tasks", short_names(tasks(), fed)}, {"bytes", json_of(bytes, batch)}});
  }
  json["tasks"] = Json::array();
  const auto figures_of_tasks = figures();
  for (size_t i = 0; i < tasks().size(); ++i)
    json["tasks"].push_back({{"task", tasks()[i].short_name()},
                             {"nodes", figures_of_tasks[i].nodes},
                             {"variables", json_of(figures_of_tasks[i].variables, batch)},
                             {"constants", json_of(figures_of_tasks[i].constants, batch)}});
  json["edges"] = Json::array();
  ValueBytes total;
  for (const auto& route : routes()) {
    total += route.bytes;
    for (const auto& crossing : route.crossings)
      json["edges"].push_back({{"from", tasks()[route.from].short_name()},
                               {"to", tasks()[route.to].short_name()},
                               {"name", crossing.name},
                               {"bytes", json_of(crossing.bytes, batch)}});
  }
  json["bytes"] = json_of(total, batch);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace muster::detail
