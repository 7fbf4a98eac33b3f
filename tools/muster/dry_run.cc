#include "muster/dry_run.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "muster/base/cpu.h"
#include "muster/base/text.h"
#include "muster/find_program.h"

namespace muster::detail {
namespace {

// Every task has an address of its node. The ports are still to be chosen: here they are 1, 2, ...
ClusterSpec cluster_of(const LaunchSpec& spec) {
  std::map<std::string, ClusterSpec::Tasks> jobs;
  int port = 0;
  for (int node = 0; node < spec.nodes; ++node) {
    const std::string host = spec.nodes == 1 ? "127.0.0.1" : fmt::format("node{}", node);
    for (const auto& task : spec.tasks_of_node(node)) jobs[*task.job][*task.task] = {host, ++port};
  }
  return ClusterSpec(std::move(jobs));
}

std::string name_of(const std::string& assignment) {
  return assignment.substr(0, assignment.find('='));
}

// What `env` has to be told to turn one environment into the other, a word each.
std::vector<std::string> changes(const Environment& from, const Environment& to) {
  const auto before = from.assignments();
  const auto after = to.assignments();
  std::set<std::string> names;
  for (const auto& assignment : after) names.insert(name_of(assignment));
  std::vector<std::string> words;
  for (const auto& assignment : before) {
    if (!names.contains(name_of(assignment)))
      words.push_back(fmt::format("-u {}", shell_quoted(name_of(assignment))));
  }
  for (const auto& assignment : after) {
    if (std::ranges::find(before, assignment) != before.end()) continue;
    const std::string value = assignment.substr(name_of(assignment).size() + 1);
    words.push_back(fmt::format("{}={}", name_of(assignment), shell_quoted(value)));
  }
  return words;
}

}  // namespace

std::string describe_launch(const LaunchOptions& options) {
  options.check();
  options.check_node(available_cores());
  const auto names = options.spec.tasks_of_node(options.node);
  const auto node = environment_of_node(options);
  const auto cores = bind_to_cores(options.binding, list_cores(), static_cast<int>(names.size()));
  const auto cluster = cluster_of(options.spec);
  Config config = options.config;
  if (config.coordinator.empty())
    config.coordinator = fmt::format("127.0.0.1:{}", cluster.tasks().size() + 1);
  if (config.job_id.empty()) config.job_id = options.spec.nodes > 1 ? "muster" : "random";
  config.secret = "...";
  std::string command =
      find_program(options.command.front(), options.config.environment.get("PATH").value_or("/usr/bin:/bin"));
  command = shell_quoted(command);
  for (size_t i = 1; i < options.command.size(); ++i) command += " " + shell_quoted(options.command[i]);

  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto environment = environment_of_task(node.variables, config,
                                                 {.task = names[i],
                                                  .spec = options.spec,
                                                  .node = options.node,
                                                  .cluster = cluster,
                                                  .master = {options.spec.nodes == 1 ? "127.0.0.1" : "node0",
                                                             static_cast<int>(cluster.tasks().size()) + 2}});
    text += fmt::format("# {} of {} tasks, {}{}\nenv", names[i].short_name(), cluster.tasks().size(),
                        cores[i].empty() ? "on any core" : "on cores ", format_cores(cores[i]));
    for (const auto& change : changes(options.config.environment, environment))
      text += fmt::format(" {} \\\n   ", change);
    text += fmt::format(" {}\n", command);
  }
  return text;
}

}  // namespace muster::detail
