#include "bench/session/subjects.h"

#include <algorithm>

#include <fmt/format.h>

#include "bench/driver/numbers.h"
#include "bench/train/subjects.h"
#include "muster/base/text.h"

namespace muster::detail::bench::session {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kProgram = "muster_bench_session";
constexpr const char* kLoop = "peer_session_loop";
constexpr const char* kTrainLoop = "peer_train_loop";
constexpr const char* kGrpc = "peer_session_grpc";
constexpr const char* kTorchRpc = "peer_session_torch_rpc.py";

// What muster_session.cc does.
constexpr int kOperators = 100;
constexpr int kCnnBatch = 64;
constexpr int kPipelineBatch = 4096;
constexpr int kReplicas = 2;
constexpr const char* kReplicaModel = "c";
constexpr int64_t kChain = 1000;  // operators; a graph has whole chains
constexpr int64_t kElement = sizeof(float);

const train::Model& replica_model() {
  return *std::ranges::find(train::models(), kReplicaModel, &train::Model::name);
}

double nodes_of(const std::string& shape) {
  const auto numbers = split(shape, 'x');
  return static_cast<double>(parse_integer(numbers.front()).value_or(0) *
                             parse_integer(numbers.back()).value_or(0));
}

class Commands {
 public:
  Commands(const Settings& settings, const Case& of) : settings_(settings), case_(of) {}

  std::vector<SubjectCommand> all() {
    if (case_.name == "pipeline") {
      muster("zero-bubble", "zero-bubble", 2);
      muster("1f1b", "1f1b", 2);
      muster("one-task", "one-task", 1);
      return std::move(commands_);
    }
    muster("muster", case_.name == "replicas" ? kReplicaModel : case_.of, case_.tasks);
    if (case_.name == "replicas") ps_sync();
    for (const auto& peer : settings_.peers) {
      if (peer == "loop" && case_.name == "operators") add(peer, {{program(kLoop), "DIR"}});
      if (peer == "loop" && case_.name == "cnn") train_loops();
      if (peer == "grpc" && (case_.name == "step" || case_.name == "transfer")) grpc();
      if (peer == "torch-rpc" && case_.name == "transfer") torch_rpc();
    }
    return std::move(commands_);
  }

 private:
  std::string program(const std::string& name) const { return settings_.programs / name; }
  std::string bytes() const { return case_.name == "transfer" ? case_.of : "0"; }

  SubjectCommand& add(const std::string& subject, std::vector<Words> processes) {
    return commands_.emplace_back(
        SubjectCommand{.of = {subject, case_.of.empty() ? case_.name : case_.name + " " + case_.of},
                       .processes = std::move(processes),
                       .variables = settings_.tuning});
  }

  /// A process for each task: the client is in the first.
  std::vector<Words> one_each(const Words& words) const {
    std::vector<Words> processes;
    for (int task = 0; task < case_.tasks; ++task) {
      processes.push_back(words);
      for (const auto& word :
           {std::string("DIR"), std::to_string(task), std::to_string(case_.tasks), bytes()})
        processes.back().push_back(word);
    }
    return processes;
  }

  void muster(const std::string& subject, const std::string& of, int tasks) {
    muster(subject, of, tasks, settings_.programs);
    const bool is_first = commands_.size() == 1;
    if (is_first && !settings_.baseline.empty()) muster("baseline", of, tasks, settings_.baseline);
  }

  void muster(const std::string& subject, const std::string& of, int tasks,
              const std::filesystem::path& programs) {
    Words words;
    if (tasks > 0) {
      words = {programs / "muster", "run", "--workers", std::to_string(tasks)};
      if (case_.name == "replicas") words.insert(words.end(), {"--ps", "1"});
      words.insert(words.end(), {"--strategy", "none", "--"});
    }
    words.insert(words.end(), {programs / kProgram, "DIR", case_.name, of.empty() ? "-" : of});
    auto& command = add(subject, {words});
    if (case_.name == "replicas") {
      command.workers = tasks;
    } else {
      command.servers = std::max(tasks - 1, 0);
    }
  }

  void ps_sync() {
    const train::Settings settings = {
        .programs = settings_.programs, .tuning = settings_.tuning, .strategies = {"ps-sync"}};
    commands_.push_back(train::subjects(settings, replica_model(), "sgd", {kReplicas}).front());
  }

  void train_loops() {
    const Words words = {program(kTrainLoop), "DIR", "0", "b", "sgd", std::to_string(kCnnBatch)};
    add("loop", {words});
    auto& variables = add("loop-kept", {words}).variables;
    variables["MALLOC_TRIM_THRESHOLD_"] = "68719476736";
    variables["MALLOC_TOP_PAD_"] = "67108864";
    variables["MALLOC_MMAP_THRESHOLD_"] = "68719476736";
  }

  void grpc() { add("grpc", one_each({program(kGrpc)})).servers = case_.tasks - 1; }

  void torch_rpc() {
    auto& command = add("torch-rpc", one_each({settings_.python, program(kTorchRpc)}));
    command.servers = case_.tasks - 1;
    command.variables["TP_SOCKET_IFNAME"] = "lo";
    if (!settings_.allocator.empty()) command.variables["LD_PRELOAD"] = settings_.allocator;
    command.spins = true;
  }

  const Settings& settings_;
  const Case& case_;
  std::vector<SubjectCommand> commands_;
};

}  // namespace

const std::vector<std::string>& case_names() {
  static const std::vector<std::string> all = {"operators", "cnn",   "executor", "step",
                                               "transfer",  "graph", "pipeline", "replicas"};
  return all;
}

std::vector<Case> cases(const Choice& choice) {
  std::vector<Case> all;
  const auto has = [&](const std::string& name) {
    return std::ranges::find(choice.names, name) != choice.names.end();
  };
  if (has("operators")) all.push_back({"operators", "", 0, kOperators, "operators"});
  if (has("cnn")) all.push_back({"cnn", "", 0, kCnnBatch, "samples"});
  for (const auto& shape : choice.shapes) {
    for (const char* edges : {"control", "data"}) {
      if (has("executor"))
        all.push_back({"executor", fmt::format("{} {}", shape, edges), 0, nodes_of(shape), "nodes"});
    }
  }
  for (const int tasks : choice.tasks) {
    if (has("step")) all.push_back({"step", std::to_string(tasks), tasks});
  }
  for (const int64_t bytes : choice.sizes) {
    const int64_t rounded_up = (bytes + kElement - 1) / kElement * kElement;
    if (has("transfer")) all.push_back({"transfer", std::to_string(rounded_up), 2});
  }
  for (const int64_t each : choice.nodes) {
    const int64_t nodes = each / kChain * kChain;
    if (has("graph")) all.push_back({"graph", std::to_string(nodes), 2, static_cast<double>(nodes), "nodes"});
  }
  if (has("pipeline")) all.push_back({"pipeline", "", 2, kPipelineBatch, "samples"});
  if (has("replicas"))
    all.push_back(
        {"replicas", "", kReplicas, static_cast<double>(kReplicas * replica_model().batch), "samples"});
  return all;
}

std::vector<SubjectCommand> subjects(const Settings& settings, const Case& of) {
  return Commands(settings, of).all();
}

std::vector<PeerState> peers(const Surroundings& surroundings, const std::string& python) {
  std::string loop = surroundings.why_not(kLoop);
  if (loop.empty()) loop = surroundings.why_not(kTrainLoop);
  std::string torch_rpc = surroundings.why_not(kTorchRpc);
  if (torch_rpc.empty()) torch_rpc = why_not_torch_rpc(python);
  return {{"loop", loop}, {"grpc", surroundings.why_not(kGrpc)}, {"torch-rpc", torch_rpc}};
}

}  // namespace muster::detail::bench::session
