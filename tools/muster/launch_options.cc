#include "muster/launch_options.h"

#include <algorithm>

#include <fmt/format.h>

#include "muster/base/cpu.h"
#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/base/tune.h"
#include "muster/cluster/identity.h"

namespace muster::detail {
namespace {

void check_only(const LaunchOptions& options) {
  std::vector<std::string> known;
  for (const auto& [job, indices] : options.spec.tasks()) {
    known.push_back(job);
    for (const int index : indices) known.push_back(TaskName::of(job, index).short_name());
  }
  for (const auto& word : options.only) {
    if (std::ranges::find(known, word) == known.end())
      raise<InvalidArgument>("--only {}: the job has no such task{}", word, suggestion(word, known));
  }
}

void check_variables(const LaunchOptions& options) {
  for (const auto& assignment : options.variables) {
    const size_t equals = assignment.find('=');
    const std::string name = assignment.substr(0, equals);
    if (name.empty() || name.find(' ') != std::string::npos)
      raise<InvalidArgument>("--env {}: expected NAME=value, or NAME for the value that it has here",
                             assignment);
    if (name.starts_with("MUSTER_")) {
      raise<InvalidArgument>(
          "--env {}: what tasks are told by {} has a flag of `muster run`, or is for the "
          "launcher itself: set it there, or in front of `muster run`",
          assignment, name);
    }
    Environment kept = {{name, "x"}};
    forget_launchers(kept);
    if (!kept.get(name)) {
      raise<InvalidArgument>("--env {}: {} says who a task is: tasks get it from `muster run`, or not at all",
                             assignment, name);
    }
    if (equals == std::string::npos && !options.config.environment.get(name))
      raise<InvalidArgument>("--env {}: it is not set here; give it a value: --env {}=value", name, name);
  }
}

// Programs take the flags of the job too, but the launcher must know the strategy, to start servers.
void check_strategy(const LaunchOptions& options) {
  try {
    check_settings(options.config, options.spec.tasks());
  } catch (const InvalidArgument& error) {
    const auto is_strategy = [](const std::string& word) {
      return word == "--strategy" || word.starts_with("--strategy=");
    };
    if (std::ranges::none_of(options.command, is_strategy)) throw;
    raise<InvalidArgument>("{} (the --strategy after -- is told to the program alone: put it before --)",
                           error.what());
  }
}

}  // namespace

void LaunchOptions::check() const {
  spec.check();
  if (node < 0 || node >= spec.nodes) {
    raise<InvalidArgument>("--node-rank {} is not between 0 and {} (--nnodes {})", node, spec.nodes - 1,
                           spec.nodes);
  }
  if (spec.nodes > 1 && config.coordinator.empty()) {
    raise<InvalidArgument>(
        "--nnodes {} needs --coordinator host:port, the same on every node: where node 0 listens. Or let "
        "--hosts h1,h2 start all nodes from here",
        spec.nodes);
  }
  check_only(*this);
  check_variables(*this);
  check_strategy(*this);
}

void LaunchOptions::check_node(int cores) const {
  if (!oversubscribe) spec.check_load(node, cores);
}

NodeEnvironment environment_of_node(const LaunchOptions& options) {
  NodeEnvironment node{.variables = options.config.environment};
  for (const auto& assignment : options.variables) {
    const size_t equals = assignment.find('=');
    if (equals != std::string::npos)
      node.variables.set(assignment.substr(0, equals), assignment.substr(equals + 1));
  }
  if (!options.tune) return node;
  const auto tasks = options.spec.tasks_of_node(options.node).size();
  for (const auto& [name, value] :
       tuning(CpuFeatures::detect(), available_cores(), static_cast<int>(tasks), node.variables)) {
    node.variables.set(name, value);
    node.tuned += fmt::format(" {}={}", name, value);
  }
  return node;
}

}  // namespace muster::detail
