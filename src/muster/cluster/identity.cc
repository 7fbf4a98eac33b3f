#include "muster/cluster/identity.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/cluster/node_list.h"

namespace muster::detail {
namespace {

// Tasks that know only the job's id look for the coordinator on this many ports; the chief takes the first
// that is free.
constexpr int kDerivedPorts = 8;
// Derived ports stay below Linux's ephemeral range (32768), which other processes take from at random.
constexpr int kFirstDerivedPort = 20000;
constexpr int kDerivedPortRange = 12000;

std::vector<int> indices(int count) {
  std::vector<int> result(static_cast<size_t>(count));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

void use_cluster(Identity& identity) {
  for (const auto& [job, tasks] : identity.cluster.jobs()) {
    for (const auto& [index, address] : tasks) identity.tasks[job].push_back(index);
  }
}

// The coordinator of a job whose addresses are all known is at the chief's.
void use_chief_address(Identity& identity) {
  const auto worker = identity.cluster.jobs().find("worker");
  if (worker == identity.cluster.jobs().end() || worker->second.begin()->first != 0) {
    raise<InvalidArgument>(
        "{}: the cluster has no chief (/job:worker/task:0), which the other tasks must find",
        identity.launcher);
  }
  if (identity.cluster.tasks().size() > 1) identity.coordinator = {worker->second.begin()->second};
  identity.hosts_coordinator = identity.is_chief();
}

// MPICH's launcher gives its ranks no name for the job, but it starts each in a session of its own: the
// parent of the session's leader is the launcher's proxy, one for all ranks of a job on this host, also
// behind a shell.
std::string session_parent() {
  std::ifstream file(fmt::format("/proc/{}/stat", getsid(0)));
  std::string stat;
  std::getline(file, stat);
  // "pid (command) state ppid ...", where the command may hold anything
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  std::string state;
  std::string parent;
  fields >> state >> parent;
  return parent;
}

// Ranks of one program are the tasks of the job "worker".
Identity from_ranks(const char* launcher, int rank, int size) {
  if (rank >= size) raise<InvalidArgument>("{} gives rank {} of only {} ranks", launcher, rank, size);
  Identity identity;
  identity.launcher = launcher;
  identity.task = TaskName::of("worker", rank);
  identity.tasks["worker"] = indices(size);
  identity.hosts_coordinator = rank == 0;
  return identity;
}

int required(const Environment& environment, const char* launcher, const char* name, int minimum) {
  const auto value = environment.integer(name, minimum);
  if (!value) raise<InvalidArgument>("{}: the environment variable {} is missing", launcher, name);
  return *value;
}

std::optional<Identity> from_muster(const Config& config) {
  if (config.task.empty() && config.cluster.empty()) return std::nullopt;
  Identity identity;
  identity.launcher = "Muster";
  if (config.task.empty() || config.cluster.empty()) {
    raise<InvalidArgument>("--task and --cluster go together: only {} is given",
                           config.task.empty() ? "--cluster" : "--task");
  }
  identity.task = TaskName::parse(config.task);
  identity.cluster = ClusterSpec::parse(config.cluster);
  identity.cluster.address(identity.task);
  identity.task = TaskName::of(*identity.task.job, *identity.task.task);
  use_cluster(identity);
  identity.job_id = config.job_id;
  if (config.coordinator.empty()) use_chief_address(identity);
  return identity;
}

// {"cluster": {"chief": ["h1:1"], "worker": ["h2:1"], "ps": ["h3:1"]}, "task": {"type": "worker", "index":
// 0}} A chief of its own is Muster's worker 0, and the workers follow it. An evaluator is not part of the
// cluster.
std::optional<Identity> from_tf_config(const Environment& environment) {
  const auto text = environment.get("TF_CONFIG");
  if (!text) return std::nullopt;
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) raise<InvalidArgument>("TF_CONFIG is not a JSON object: {}", *text);
  if (!json.contains("cluster")) return std::nullopt;  // TensorFlow's own way to say: a process alone
  const auto task = json.value("task", nlohmann::json::object());
  if (!task.is_object() || !task.contains("type") || !task["type"].is_string()) {
    raise<InvalidArgument>("TF_CONFIG has a cluster but no task with a type and an index: {}", *text);
  }
  auto type = task["type"].get<std::string>();
  // Some operators write the index as text.
  const auto& stated = task.contains("index") ? task["index"] : nlohmann::json(0);
  int index = -1;
  if (stated.is_number_integer()) index = stated.get<int>();
  if (stated.is_string())
    index = Environment{{"TF_CONFIG's index", stated.get<std::string>()}}
                .integer("TF_CONFIG's index", 0)
                .value_or(-1);
  if (index < 0)
    raise<InvalidArgument>("TF_CONFIG's task index {} is not a whole number from 0", stated.dump());

  const auto original = ClusterSpec::parse(json["cluster"].dump());
  auto jobs = original.jobs();
  if (!jobs.contains("chief") && jobs.contains("master")) {  // TensorFlow before 1.4 said master
    jobs["chief"] = jobs["master"];
    jobs.erase("master");
    if (type == "master") type = "chief";
  }
  int shift = 0;
  if (const auto chief = jobs.find("chief"); chief != jobs.end()) {
    if (chief->second.size() != 1) {
      raise<InvalidArgument>("TF_CONFIG has {} chiefs; there can be one", chief->second.size());
    }
    shift = 1;
    ClusterSpec::Tasks workers = {{0, chief->second.begin()->second}};
    for (const auto& [number, address] : jobs["worker"]) workers[number + 1] = address;
    jobs["worker"] = std::move(workers);
    jobs.erase("chief");
  }
  jobs.erase("evaluator");

  Identity identity;
  identity.launcher = "TF_CONFIG";
  identity.cluster = ClusterSpec(std::move(jobs));
  use_cluster(identity);
  if (type == "chief" && shift == 1) {
    identity.task = TaskName::of("worker", 0);
  } else {
    identity.task = TaskName::of(type, type == "worker" ? index + shift : index);
  }
  if (!identity.is_observer()) identity.cluster.address(identity.task);
  // The same on every task, and different for two jobs on the same hosts.
  identity.job_id = "tf-" + identity.cluster.to_json();
  use_chief_address(identity);
  return identity;
}

std::optional<Identity> from_torchrun(const Environment& environment) {
  if (!environment.get("RANK") || !environment.get("WORLD_SIZE")) return std::nullopt;
  auto identity = from_ranks("torchrun", required(environment, "torchrun", "RANK", 0),
                             required(environment, "torchrun", "WORLD_SIZE", 1));
  environment.integer("LOCAL_RANK", 0);
  environment.integer("LOCAL_WORLD_SIZE", 1);
  const auto host = environment.get("MASTER_ADDR");
  const auto port = environment.integer("MASTER_PORT", 1);
  if (identity.count("worker") > 1) {
    if (!host || !port) {
      raise<InvalidArgument>(
          "torchrun: RANK and WORLD_SIZE are set, but MASTER_ADDR and MASTER_PORT are not");
    }
    // torchrun's own store may listen on MASTER_PORT: we take ports that follow from it.
    identity.job_id =
        fmt::format("torchrun-{}-{}", environment.get("TORCHELASTIC_RUN_ID").value_or("none"), *port);
    identity.coordinator = derived_addresses(*host, identity.job_id);
  }
  return identity;
}

// MPI's launchers say how many ranks are on this host, but not where rank 0 is.
void find_rank0(Identity& identity, const Config& config, std::optional<int> local_size) {
  if (identity.count("worker") == 1 || !config.coordinator.empty()) return;
  if (local_size != identity.count("worker")) {
    raise<InvalidArgument>(
        "{} started this job on several hosts and does not say where rank 0 is; tell every rank: "
        "mpirun -x MUSTER_COORDINATOR=<host of rank 0>:<port> ...",
        identity.launcher);
  }
  identity.coordinator = derived_addresses("127.0.0.1", identity.job_id);
}

std::optional<Identity> from_open_mpi(const Config& config) {
  const auto& environment = config.environment;
  const auto rank = environment.integer("OMPI_COMM_WORLD_RANK", 0);
  if (!rank) return std::nullopt;
  auto identity = from_ranks("Open MPI", *rank, required(environment, "Open MPI", "OMPI_COMM_WORLD_SIZE", 1));
  // mpirun's namespace is different for each run, also on the same host.
  identity.job_id =
      "openmpi-" +
      environment.get("PMIX_NAMESPACE").value_or(environment.get("OMPI_MCA_ess_base_jobid").value_or(""));
  find_rank0(identity, config, environment.integer("OMPI_COMM_WORLD_LOCAL_SIZE", 1));
  return identity;
}

std::optional<Identity> from_pmi(const Config& config) {
  const auto& environment = config.environment;
  const auto pmi_rank = environment.integer("PMI_RANK", 0);
  const auto pmix_rank = environment.integer("PMIX_RANK", 0);
  if (!pmi_rank && !pmix_rank) return std::nullopt;
  auto size = environment.integer("PMI_SIZE", 1);
  // PMIx has no variable for the size; whoever speaks PMIx has one of its own.
  if (!size) size = environment.integer("OMPI_COMM_WORLD_SIZE", 1);
  if (!size) size = environment.integer("SLURM_STEP_NUM_TASKS", 1);
  if (!size) size = environment.integer("SLURM_NTASKS", 1);
  if (!size)
    raise<InvalidArgument>(
        "PMI: a rank is set (PMI_RANK or PMIX_RANK), but no variable gives the number of ranks");
  auto identity = from_ranks("PMI", pmi_rank ? *pmi_rank : *pmix_rank, *size);
  identity.job_id = "pmi-" + environment.get("PMIX_NAMESPACE").value_or(session_parent());
  // Under Slurm, srun's own variables say where rank 0 is.
  if (environment.get("SLURM_STEP_ID")) return identity;
  auto local_size = environment.integer("MPI_LOCALNRANKS", 1);
  if (!local_size) local_size = environment.integer("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  find_rank0(identity, config, local_size);
  return identity;
}

std::optional<Identity> from_slurm(const Environment& environment) {
  // A batch script has SLURM_PROCID too, but only srun's tasks are in a step.
  if (!environment.get("SLURM_STEP_ID") || !environment.get("SLURM_PROCID")) return std::nullopt;
  auto size = environment.integer("SLURM_STEP_NUM_TASKS", 1);
  if (!size) size = required(environment, "Slurm", "SLURM_NTASKS", 1);
  auto identity = from_ranks("Slurm", required(environment, "Slurm", "SLURM_PROCID", 0), *size);
  if (*size == 1) return identity;
  auto nodes = environment.get("SLURM_STEP_NODELIST");
  if (!nodes) nodes = environment.get("SLURM_JOB_NODELIST");
  if (!nodes) nodes = environment.get("SLURM_NODELIST");
  if (!nodes) raise<InvalidArgument>("Slurm: the environment variable SLURM_STEP_NODELIST is missing");
  const auto expanded = expand_node_list(*nodes);
  if (const auto counts = environment.get("SLURM_STEP_TASKS_PER_NODE")) {
    const auto per_node = expand_counts(*counts);
    const int total = std::accumulate(per_node.begin(), per_node.end(), 0);
    if (per_node.size() != expanded.size() || total != *size) {
      raise<InvalidArgument>("Slurm: SLURM_STEP_TASKS_PER_NODE={} does not fit {} tasks on {}", *counts,
                             *size, *nodes);
    }
  }
  identity.job_id = fmt::format("slurm-{}.{}", environment.get("SLURM_JOB_ID").value_or("0"),
                                *environment.get("SLURM_STEP_ID"));
  identity.coordinator = derived_addresses(expanded.front(), identity.job_id);
  return identity;
}

std::string describe(const Identity& identity) {
  std::string counts;
  for (const auto& [job, tasks] : identity.tasks) {
    counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", tasks.size(), job);
  }
  return fmt::format("{} says {} of {}", identity.launcher, identity.task.to_string(), counts);
}

// torchrun and MPI know workers only; they have no say about the rest of the cluster.
void require_agreement(const Identity& a, const Identity& b) {
  const bool same_shape =
      a.cluster.empty() || b.cluster.empty() ? a.count("worker") == b.count("worker") : a.tasks == b.tasks;
  if (a.task == b.task && same_shape) return;
  raise<InvalidArgument>(
      "two launchers disagree about who this process is: {}; {}. Unset the variables of the one that did not "
      "start it",
      describe(a), describe(b));
}

}  // namespace

std::vector<Address> derived_addresses(const std::string& host, const std::string& job_id) {
  uint32_t hash = 2166136261U;  // FNV-1a: the same on every host and in every build
  for (const char c : job_id) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  std::vector<Address> result;
  for (int i = 0; i < kDerivedPorts; ++i) {
    result.push_back(
        {host, kFirstDerivedPort + static_cast<int>((hash + static_cast<uint32_t>(i)) % kDerivedPortRange)});
  }
  return result;
}

int Identity::count(const std::string& job) const {
  const auto found = tasks.find(job);
  return found == tasks.end() ? 0 : static_cast<int>(found->second.size());
}

void check_settings(const Config& config, const TaskSet& tasks) {
  Config::Tasks named;
  if (const auto workers = tasks.find("worker"); workers != tasks.end()) {
    for (const int index : workers->second)
      named.workers.push_back(TaskName::of("worker", index).short_name());
  }
  if (const auto servers = tasks.find("ps"); servers != tasks.end())
    named.servers = static_cast<int>(servers->second.size());
  config.check(named);
}

void forget_launchers(Environment& environment) {
  for (const char* prefix : {"OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_"}) {
    for (const auto& name : environment.names_with_prefix(prefix)) environment.unset(name);
  }
  for (const char* name :
       {"MUSTER_TASK", "MUSTER_CLUSTER", "MUSTER_COORDINATOR", "MUSTER_RESTART_COUNT", "TF_CONFIG", "RANK",
        "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MPI_LOCALNRANKS",
        "MPI_LOCALRANKID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_ID"}) {
    environment.unset(name);
  }
}

Identity find_identity(const Config& config) {
  const auto& environment = config.environment;
  std::vector<Identity> found;
  const auto consider = [&](std::optional<Identity> identity) {
    if (identity) found.push_back(std::move(*identity));
  };
  consider(from_muster(config));
  consider(from_tf_config(environment));
  consider(from_torchrun(environment));
  consider(from_open_mpi(config));
  consider(from_pmi(config));
  const bool under_mpi = environment.get("OMPI_COMM_WORLD_RANK") ||
                         (environment.get("PMI_RANK") && environment.get("MPI_LOCALNRANKS"));
  if (!under_mpi) consider(from_slurm(environment));

  if (found.empty()) {
    if (!config.coordinator.empty()) {
      raise<InvalidArgument>(
          "--coordinator {} is given, but nothing says which task this is: give --task and --cluster, or "
          "start the program with a launcher such as `muster run`",
          config.coordinator);
    }
    if (environment.get("RANK") || environment.get("WORLD_SIZE"))
      log_warning(
          "of RANK and WORLD_SIZE, by which torchrun says which worker this is, only {} is set: this worker "
          "is alone",
          environment.get("RANK") ? "RANK" : "WORLD_SIZE");
    Identity alone;
    alone.launcher = "none";
    alone.task = TaskName::of("worker", 0);
    alone.tasks["worker"] = {0};
    alone.job_id = config.job_id;
    return alone;
  }
  for (size_t i = 1; i < found.size(); ++i) require_agreement(found[0], found[i]);
  Identity identity = std::move(found[0]);
  for (size_t i = 1; identity.coordinator.empty() && i < found.size(); ++i) {
    identity.coordinator = found[i].coordinator;
    identity.job_id = found[i].job_id;
  }
  if (!config.coordinator.empty()) {
    identity.coordinator = {Address::parse(config.coordinator)};
    // Told all three, a task is under `muster run`, which is the coordinator of what it starts.
    identity.hosts_coordinator = identity.launcher != "Muster" && identity.is_chief();
  }
  if (!config.job_id.empty()) identity.job_id = config.job_id;
  return identity;
}

}  // namespace muster::detail
