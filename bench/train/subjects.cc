#include "bench/train/subjects.h"

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail::bench::train {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kDdp = "peer_train_ddp.py";
constexpr const char* kLoop = "peer_train_loop";

// "As installed" means that nobody chose any of these.
const Words kChosenByHand = {"OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS",
                             "DNNL_MAX_CPU_ISA",  "ONEDNN_MAX_CPU_ISA",   "OMP_NUM_THREADS",
                             "MKL_NUM_THREADS",   "GLOO_SOCKET_IFNAME",   "LD_PRELOAD"};

class Commands {
 public:
  Commands(const Settings& settings, const Model& model, std::string optimizer)
      : settings_(settings),
        model_(model.name),
        optimizer_(std::move(optimizer)),
        batch_(std::to_string(model.batch)) {}

  std::vector<SubjectCommand> all(const std::vector<int>& workers) {
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
    return std::move(commands_);
  }

 private:
  std::string program(const std::string& name) const { return settings_.programs / name; }

  SubjectCommand& add(const std::string& subject, int workers, std::vector<Words> processes) {
    return commands_.emplace_back(SubjectCommand{.of = {subject, fmt::format("{}, {}", model_, optimizer_)},
                                                 .workers = workers,
                                                 .processes = std::move(processes),
                                                 .variables = settings_.tuning});
  }

  void muster(int workers) {
    if (settings_.strategies.empty()) return muster(workers, "", {});
    for (const auto& strategy : settings_.strategies)
      muster(workers, strategy == "allreduce" ? "" : strategy, strategy_flags(strategy));
  }

  void muster(int workers, const std::string& strategy, const Words& flags) {
    muster(workers, settings_.programs, strategy.empty() ? "muster" : strategy, flags);
    if (!settings_.baseline.empty())
      muster(workers, settings_.baseline, "baseline" + (strategy.empty() ? "" : " " + strategy), flags);
  }

  void muster(int workers, const std::filesystem::path& programs, const std::string& subject,
              const Words& flags) {
    Words command = {programs / "muster", "run", "--workers", std::to_string(workers)};
    command.insert(command.end(), flags.begin(), flags.end());
    if (!settings_.slow.empty()) command.insert(command.end(), {"--slow", settings_.slow});
    command.insert(command.end(), {"--", programs / "muster_bench_train", "DIR", "--model", model_,
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

  const Settings& settings_;
  const std::string model_;
  const std::string optimizer_;
  const std::string batch_;
  std::vector<SubjectCommand> commands_;
};

}  // namespace

std::vector<std::string> strategy_flags(const std::string& strategy) {
  static const std::map<std::string, std::string> numbers = {
      {"ps-sync", "--replicas-to-aggregate"}, {"ps-ssp", "--staleness"}, {"ps-local", "--sync-every"}};
  const auto parts = split(strategy, ':');
  Words flags = {"--strategy", parts[0]};
  if (parts.size() == 1) return flags;
  const auto number = numbers.find(parts[0]);
  if (parts.size() > 2 || number == numbers.end() || !parse_integer(parts[1]))
    raise<InvalidArgument>("--strategies: '{}' is not like ps-sync:1, ps-ssp:4 or ps-local:8", strategy);
  flags.insert(flags.end(), {number->second, parts[1]});
  return flags;
}

const std::vector<Model>& models() {
  static const std::vector<Model> all = {
      {"a", "MLP 784-1024-1024-10", 64},
      {"b", "CNN like LeNet, 28x28", 64},
      {"c", "MLP 784-4096-4096-10", 32},
      {"d", "ResNet-18 of width 32, 32x32", 32},
  };
  return all;
}

const std::vector<std::string>& optimizers() {
  static const std::vector<std::string> all = {"sgd", "adam"};
  return all;
}

std::vector<SubjectCommand> subjects(const Settings& settings, const Model& model,
                                     const std::string& optimizer, const std::vector<int>& workers) {
  return Commands(settings, model, optimizer).all(workers);
}

std::vector<PeerState> peers(const Surroundings& surroundings, const std::string& python) {
  std::string ddp = surroundings.why_not(kDdp);
  if (ddp.empty() && python.empty()) ddp = kNoTorch;
  return {{"ddp", ddp}, {"ddp-installed", ddp}, {"loop", surroundings.why_not(kLoop)}};
}

}  // namespace muster::detail::bench::train
