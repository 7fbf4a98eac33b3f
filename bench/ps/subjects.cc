#include "bench/ps/subjects.h"

#include <set>

#include <fmt/format.h>

#include "bench/driver/numbers.h"

namespace muster::detail::bench::ps {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kGrpc = "peer_ps_grpc";
constexpr const char* kTorchRpc = "peer_ps_torch_rpc.py";
constexpr const char* kFloor = "peer_ps_floor";
constexpr int64_t kElement = sizeof(float);
constexpr int64_t kSmall = 4 << 10;  // of each when there are several
constexpr int64_t kWhole = 4 << 20;  // what a thousand of these are compared with

class Commands {
 public:
  Commands(const Settings& settings, const Case& of) : settings_(settings), case_(of) {}

  std::vector<SubjectCommand> all() {
    muster();
    for (const auto& peer : settings_.peers) {
      if (peer == "grpc-unary") grpc(peer, "unary");
      if (peer == "grpc-stream") grpc(peer, "stream");
      if (peer == "torch-rpc") torch_rpc();
    }
    if (case_.workers == 1 && case_.servers == 1 && std::filesystem::exists(program(kFloor))) floor();
    return std::move(commands_);
  }

 private:
  std::string program(const std::string& name) const { return settings_.programs / name; }
  bool tcp() const { return case_.transport == "tcp"; }

  SubjectCommand& add(const std::string& subject, std::vector<Words> processes) {
    return commands_.emplace_back(SubjectCommand{.of = {subject, describe(case_)},
                                                 .workers = case_.workers,
                                                 .servers = case_.servers,
                                                 .processes = std::move(processes)});
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
    muster("muster", settings_.programs);
    if (!settings_.baseline.empty()) muster("baseline", settings_.baseline);
  }

  void muster(const std::string& subject, const std::filesystem::path& programs) {
    Words words = {programs / "muster",
                   "run",
                   "--workers",
                   std::to_string(case_.workers),
                   "--ps",
                   std::to_string(case_.servers),
                   "--strategy",
                   "none",
                   "--no-tune",
                   "--",
                   programs / "muster_bench_ps",
                   "DIR",
                   "--variables",
                   std::to_string(case_.variables),
                   "--bytes",
                   std::to_string(case_.bytes)};
    if (tcp()) words.insert(words.end(), {"--shared-memory", "off"});
    add(subject, {words});
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
    auto& command = add("floor", {{program(kFloor), "DIR", "0", "1", "0", std::to_string(case_.variables),
                                   std::to_string(case_.bytes)}});
    command.servers = 0;
  }

  const Settings& settings_;
  const Case& case_;
  std::vector<SubjectCommand> commands_;
};

}  // namespace

std::string describe(const Case& of) {
  return fmt::format("{}, {}, {}", of.transport, count_of(static_cast<size_t>(of.workers), "worker"),
                     count_of(static_cast<size_t>(of.servers), "server"));
}

const std::vector<std::string>& transports() {
  static const std::vector<std::string> all = {"shm", "tcp"};
  return all;
}

std::vector<Case> cases(const Choice& choice) {
  const auto whole_elements = [](int64_t bytes) { return (bytes + kElement - 1) / kElement * kElement; };
  std::set<std::pair<int64_t, int>> shapes;  // bytes of all variables, variables
  for (const int variables : choice.variables) {
    if (variables > 1) {
      shapes.insert({variables * kSmall, variables});
      shapes.insert({kWhole, 1});
      continue;
    }
    for (const int64_t bytes : choice.sizes) shapes.insert({whole_elements(bytes), 1});
  }
  std::vector<Case> all;
  for (const auto& transport : choice.transports) {
    for (const int workers : choice.workers) {
      for (const int servers : choice.servers) {
        for (const auto& [bytes, variables] : shapes)
          all.push_back({transport, workers, servers, variables, bytes / variables});
      }
    }
  }
  return all;
}

std::vector<SubjectCommand> subjects(const Settings& settings, const Case& of) {
  return Commands(settings, of).all();
}

std::vector<PeerState> peers(const Surroundings& surroundings, const std::string& python) {
  const std::string grpc = surroundings.why_not(kGrpc);
  std::string torch_rpc = surroundings.why_not(kTorchRpc);
  if (torch_rpc.empty()) torch_rpc = why_not_torch_rpc(python);
  return {{"grpc-unary", grpc}, {"grpc-stream", grpc}, {"torch-rpc", torch_rpc}};
}

}  // namespace muster::detail::bench::ps
