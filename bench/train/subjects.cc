#include "bench/train/subjects.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "muster/base/deadline.h"
#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/task_process.h"

namespace muster {
namespace {

using namespace std::chrono_literals;
using Words = std::vector<std::string>;

constexpr const char* kDdp = "peer_train_ddp.py";
constexpr const char* kLoop = "peer_train_loop";
constexpr const char* kAllocator = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4";
constexpr auto kTimeForPython = 20s;

// "As installed" means that nobody chose any of these.
const Words kChosenByHand = {"OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS",
                             "DNNL_MAX_CPU_ISA",  "ONEDNN_MAX_CPU_ISA",   "OMP_NUM_THREADS",
                             "MKL_NUM_THREADS",   "GLOO_SOCKET_IFNAME",   "LD_PRELOAD"};

class Subjects {
 public:
  Subjects(const TrainSettings& settings, const TrainModelInfo& model, std::string optimizer)
      : settings_(settings),
        model_(model.name),
        optimizer_(std::move(optimizer)),
        batch_(std::to_string(model.batch)) {}

  std::vector<TrainSubject> all(const std::vector<int>& workers) {
    for (const int count : workers) muster(count);
    for (const auto& peer : settings_.peers) {
      for (const int count : workers) {
        if (peer == "ddp") ddp(count);
        if (peer == "ddp-installed" && count > 1) ddp_installed(count);
        if (peer == "loop" && count == 1) loop("loop", 1);
      }
    }
    for (const int count : workers) {
      if (settings_.floor && count > 1) loop("alone", count);
    }
    return std::move(subjects_);
  }

 private:
  std::string program(const std::string& name) const { return settings_.programs / name; }

  SubjectCommand& add(const std::string& subject, int workers, std::vector<Words> processes) {
    subjects_.push_back({.command = {.of = {subject, fmt::format("{}, {}", model_, optimizer_)},
                                     .processes = std::move(processes),
                                     .variables = settings_.tuning},
                         .workers = workers});
    return subjects_.back().command;
  }

  void muster(int workers) {
    if (settings_.strategies.empty()) return muster(workers, "muster", {});
    for (const auto& strategy : settings_.strategies)
      muster(workers, strategy == "allreduce" ? "muster" : strategy, strategy_flags(strategy));
  }

  void muster(int workers, const std::string& subject, const Words& flags) {
    Words command = {program("muster"), "run", "--workers", std::to_string(workers)};
    command.insert(command.end(), flags.begin(), flags.end());
    if (!settings_.slow.empty()) command.insert(command.end(), {"--slow", settings_.slow});
    command.insert(command.end(), {"--", program("muster_bench_train"), "DIR", "--model", model_,
                                   "--optimizer", optimizer_, "--batch", batch_});
    add(subject, workers, {command});
  }

  std::vector<Words> ddp_processes(int workers, const std::string& how) const {
    std::vector<Words> processes;
    for (int rank = 0; rank < workers; ++rank)
      processes.push_back({settings_.python, program(kDdp), "DIR", std::to_string(rank),
                           std::to_string(workers), model_, optimizer_, batch_, how});
    return processes;
  }

  void ddp(int workers) {
    auto& variables = add("ddp", workers, ddp_processes(workers, "best")).variables;
    variables["GLOO_SOCKET_IFNAME"] = "lo";
    if (!settings_.allocator.empty()) variables["LD_PRELOAD"] = settings_.allocator;
  }

  void ddp_installed(int workers) {
    auto& command = add("ddp-installed", workers, ddp_processes(workers, "default"));
    command.variables.clear();
    command.without = kChosenByHand;
  }

  void loop(const std::string& subject, int workers) {
    std::vector<Words> processes;
    for (int rank = 0; rank < workers; ++rank)
      processes.push_back({program(kLoop), "DIR", std::to_string(rank), model_, optimizer_, batch_});
    add(subject, workers, std::move(processes));
  }

  const TrainSettings& settings_;
  const std::string model_;
  const std::string optimizer_;
  const std::string batch_;
  std::vector<TrainSubject> subjects_;
};

bool runs(const std::string& python, const std::string& text) {
  try {
    TaskProcess process(python, {python, "-c", text}, Environment::of_process());
    const auto deadline = Deadline::after(kTimeForPython);
    while (!process.reap() && !deadline.expired()) std::this_thread::sleep_for(5ms);
    return process.exit() && process.exit()->ok();
  } catch (const SystemError&) {
    return false;
  }
}

bool has_torch(const std::string& python) {
  return runs(python, "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)");
}

}  // namespace

std::vector<std::string> strategy_flags(const std::string& strategy) {
  static const std::map<std::string, std::string> kNumbers = {
      {"ps-sync", "--replicas-to-aggregate"}, {"ps-ssp", "--staleness"}, {"ps-local", "--sync-every"}};
  const auto parts = split(strategy, ':');
  Words flags = {"--strategy", parts[0]};
  if (parts.size() == 1) return flags;
  const auto number = kNumbers.find(parts[0]);
  if (parts.size() > 2 || number == kNumbers.end() || !parse_integer(parts[1]))
    raise<InvalidArgument>("--strategies: '{}' is not like ps-sync:1, ps-ssp:4 or ps-local:8", strategy);
  flags.insert(flags.end(), {number->second, parts[1]});
  return flags;
}

const std::vector<TrainModelInfo>& train_models() {
  static const std::vector<TrainModelInfo> models = {
      {"a", "MLP 784-1024-1024-10", 64},
      {"b", "CNN like LeNet, 28x28", 64},
      {"c", "MLP 784-4096-4096-10", 32},
      {"d", "ResNet-18 of width 32, 32x32", 32},
  };
  return models;
}

const std::vector<std::string>& train_optimizers() {
  static const std::vector<std::string> optimizers = {"sgd", "adam"};
  return optimizers;
}

std::vector<TrainSubject> train_subjects(const TrainSettings& settings, const TrainModelInfo& model,
                                         const std::string& optimizer, const std::vector<int>& workers) {
  return Subjects(settings, model, optimizer).all(workers);
}

std::vector<PeerState> train_peers(const std::filesystem::path& programs, const std::string& python) {
  const auto not_built = [&](const char* program) {
    return std::filesystem::exists(programs / program)
               ? std::string()
               : fmt::format("is not built: there is no {} in {} (scripts/build release)", program,
                             programs.string());
  };
  std::string ddp = not_built(kDdp);
  if (ddp.empty() && python.empty())
    ddp = "can't run: no python3 here has torch. Install python3-torch (scripts/bootstrap)";
  return {{"ddp", ddp}, {"ddp-installed", ddp}, {"loop", not_built(kLoop)}};
}

std::string find_torch_python(const std::vector<std::string>& candidates) {
  const auto found = std::find_if(candidates.begin(), candidates.end(), [](const std::string& each) {
    return std::filesystem::exists(each) && has_torch(each);
  });
  return found != candidates.end() ? *found : "";
}

bool can_import(const std::string& python, const std::string& module, const std::string& name) {
  return runs(python, fmt::format("from {} import {}", module, name));
}

std::string find_allocator() {
  return std::filesystem::exists(kAllocator) ? kAllocator : "";
}

std::vector<std::string> python_candidates(const std::string& search_path) {
  std::vector<std::string> candidates = {"/usr/bin/python3"};
  for (const auto& folder : split(search_path, ':')) {
    const std::string path = std::filesystem::path(folder) / "python3";
    if (!folder.empty() && std::find(candidates.begin(), candidates.end(), path) == candidates.end())
      candidates.push_back(path);
  }
  return candidates;
}

}  // namespace muster
