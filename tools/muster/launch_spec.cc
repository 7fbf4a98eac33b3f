#include "muster/launch_spec.h"

#include <numeric>

#include <nlohmann/json.hpp>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

// Nobody trains with so many; a thousand by mistake would take all memory before it fails.
constexpr int kTasksOfACore = 32;

// [first, last) of `count` things on node `node`.
std::pair<int, int> range_of_node(int count, int nodes, int node) {
  const int each = count / nodes;
  const int more = count % nodes;
  const int first = node * each + std::min(node, more);
  return {first, first + each + (node < more ? 1 : 0)};
}

}  // namespace

void LaunchSpec::check() const {
  if (workers < 1) raise<InvalidArgument>("--workers {}: a job has at least one worker", workers);
  if (servers < 0) raise<InvalidArgument>("--ps {}: expected a whole number from 0", servers);
  if (nodes < 1) raise<InvalidArgument>("--nnodes {}: a job runs on at least one node", nodes);
  if (nodes > workers) {
    raise<InvalidArgument>(
        "--nnodes {} with --workers {}: --workers counts those of all nodes, and each node runs at least one",
        nodes, workers);
  }
}

void LaunchSpec::check_load(int node, int cores) const {
  int64_t tasks = 0;
  for (const int count : {workers, servers}) {
    const auto [first, last] = range_of_node(count, nodes, node);
    tasks += last - first;
  }
  const int64_t most = int64_t{kTasksOfACore} * cores;
  if (tasks <= most) return;
  raise<InvalidArgument>(
      "--workers {}: this node, with {} core{}, would run {} tasks, and more than {} ({} for each core) are "
      "refused; give fewer, or add --oversubscribe to start them all the same",
      workers, cores, cores == 1 ? "" : "s", tasks, most, kTasksOfACore);
}

TaskSet LaunchSpec::tasks() const {
  check();
  TaskSet tasks;
  tasks["worker"].resize(static_cast<size_t>(workers));
  std::iota(tasks["worker"].begin(), tasks["worker"].end(), 0);
  if (servers > 0) {
    tasks["ps"].resize(static_cast<size_t>(servers));
    std::iota(tasks["ps"].begin(), tasks["ps"].end(), 0);
  }
  return tasks;
}

std::vector<TaskName> LaunchSpec::tasks_of_node(int node) const {
  std::vector<TaskName> names;
  for (const auto& [job, count] : {std::pair{"ps", servers}, std::pair{"worker", workers}}) {
    const auto [first, last] = range_of_node(count, nodes, node);
    for (int index = first; index < last; ++index) names.push_back(TaskName::of(job, index));
  }
  return names;
}

Environment environment_of_task(Environment environment, Config config, const TaskVariables& variables) {
  forget_launchers(environment);
  const std::string& job = *variables.task.job;
  const int index = *variables.task.task;
  const std::string cluster = variables.cluster.to_json();

  config.task = variables.task.to_string();
  config.cluster = cluster;
  config.export_to(environment);

  nlohmann::ordered_json tf_config;
  tf_config["cluster"] = nlohmann::ordered_json::parse(cluster);
  tf_config["task"] = {{"type", job}, {"index", index}};
  environment.set("TF_CONFIG", tf_config.dump());

  if (job == "worker") {  // torch.distributed has no servers
    const auto [first, last] = range_of_node(variables.spec.workers, variables.spec.nodes, variables.node);
    environment.set("RANK", std::to_string(index));
    environment.set("WORLD_SIZE", std::to_string(variables.spec.workers));
    environment.set("LOCAL_RANK", std::to_string(index - first));
    environment.set("LOCAL_WORLD_SIZE", std::to_string(last - first));
    environment.set("MASTER_ADDR", variables.master.host);
    environment.set("MASTER_PORT", std::to_string(variables.master.port));
  }
  return environment;
}

}  // namespace muster::detail
