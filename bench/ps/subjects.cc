#include "bench/ps/subjects.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "bench/train/subjects.h"

namespace muster {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kGrpc = "peer_ps_grpc";
constexpr const char* kTorchRpc = "peer_ps_torch_rpc.py";
constexpr const char* kFloor = "peer_ps_floor";
constexpr int64_t kSmall = 4 << 10;  // of each when there are several
constexpr int64_t kWhole = 4 << 20;  // what a thousand of these are compared with

std::string count_of(int number, const std::string& what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

class Subjects {
 public:
  Subjects(const PsSettings& settings, const PsCase& of) : settings_(settings), case_(of) {}

  std::vector<PsSubject> all() {
    muster();
    for (const auto& peer : settings_.peers) {
      if (peer == "grpc-unary") grpc(peer, "unary");
      if (peer == "grpc-stream") grpc(peer, "stream");
      if (peer == "torch-rpc") torch_rpc();
    }
    if (case_.workers == 1 && case_.servers == 1 && std::filesystem::exists(program(kFloor))) floor();
    return std::move(subjects_);
  }

 private:
  std::string program(const std::string& name) const { return settings_.programs / name; }
  bool tcp() const { return case_.transport == "tcp"; }

  SubjectCommand& add(const std::string& subject, std::vector<Words> processes) {
    subjects_.push_back(
        {.command = {.of = {subject, describe(case_)}, .processes = std::move(processes), .variables = {}},
         .workers = case_.workers,
         .servers = case_.servers});
    return subjects_.back().command;
  }

  /// A process for each rank: `words`, then what it is told about the case.
  std::vector<Words> one_each(const Words& words) const {
    std::vector<Words> processes;
    for (int rank = 0; rank < case_.workers + case_.servers; ++rank) {
      processes.push_back(words);
      for (const auto& word :
           {std::string("DIR"), std::to_string(rank), std::to_string(case_.workers),
            std::to_string(case_.servers), std::to_string(case_.variables), std::to_string(case_.bytes)})
        processes.back().push_back(word);
    }
    return processes;
  }

  void muster() {
    Words words = {program("muster"),
                   "run",
                   "--workers",
                   std::to_string(case_.workers),
                   "--ps",
                   std::to_string(case_.servers),
                   "--no-tune",
                   "--",
                   program("muster_bench_ps"),
                   "DIR",
                   "--variables",
                   std::to_string(case_.variables),
                   "--bytes",
                   std::to_string(case_.bytes)};
    if (tcp()) words.insert(words.end(), {"--shared-memory", "off"});
    add("muster", {words});
  }

  void grpc(const std::string& subject, const std::string& how) {
    add(subject, one_each({program(kGrpc), how, tcp() ? "tcp" : "unix"}));
  }

  void torch_rpc() {
    auto& command = add("torch-rpc", one_each({settings_.python, program(kTorchRpc), case_.transport}));
    command.variables["TP_SOCKET_IFNAME"] = "lo";
    if (!settings_.allocator.empty()) command.variables["LD_PRELOAD"] = settings_.allocator;
    command.spins = !tcp();
  }

  void floor() {
    add("floor", {{program(kFloor), "DIR", "0", "1", "0", std::to_string(case_.variables),
                   std::to_string(case_.bytes)}});
    subjects_.back().servers = 0;
  }

  const PsSettings& settings_;
  const PsCase& case_;
  std::vector<PsSubject> subjects_;
};

std::string why_not_torch_rpc(const std::string& python) {
  if (python.empty())
    return "can't run: no python3 here has torch. Install python3-torch (scripts/bootstrap)";
  if (!can_import(python, "torch.distributed.rpc", "TensorPipeAgent"))
    return fmt::format("can't run: the torch of {} is built without TensorPipe", python);
  return "";
}

}  // namespace

std::string describe(const PsCase& of) {
  return fmt::format("{}, {}, {}", of.transport, count_of(of.workers, "worker"),
                     count_of(of.servers, "server"));
}

const std::vector<std::string>& ps_transports() {
  static const std::vector<std::string> transports = {"shm", "tcp"};
  return transports;
}

std::vector<PsCase> ps_cases(const PsChoice& choice) {
  std::set<std::pair<int64_t, int>> shapes;  // bytes of all variables, variables
  for (const int variables : choice.variables) {
    if (variables > 1) {
      shapes.insert({variables * kSmall, variables});
      shapes.insert({kWhole, 1});
      continue;
    }
    for (const int64_t bytes : choice.sizes) shapes.insert({round_up("allreduce", bytes, 1), 1});
  }
  std::vector<PsCase> cases;
  for (const auto& transport : choice.transports) {
    for (const int workers : choice.workers) {
      for (const int servers : choice.servers) {
        for (const auto& [bytes, variables] : shapes)
          cases.push_back({transport, workers, servers, variables, bytes / variables});
      }
    }
  }
  return cases;
}

std::vector<PsSubject> ps_subjects(const PsSettings& settings, const PsCase& of) {
  return Subjects(settings, of).all();
}

std::vector<PeerState> ps_peers(const std::filesystem::path& programs, const std::string& python) {
  const auto not_built = [&](const char* program) {
    return std::filesystem::exists(programs / program)
               ? std::string()
               : fmt::format("is not built: there is no {} in {} (scripts/build release)", program,
                             programs.string());
  };
  std::string torch_rpc = not_built(kTorchRpc);
  if (torch_rpc.empty()) torch_rpc = why_not_torch_rpc(python);
  return {{"grpc-unary", not_built(kGrpc)}, {"grpc-stream", not_built(kGrpc)}, {"torch-rpc", torch_rpc}};
}

}  // namespace muster
