#include "bench/collective/subjects.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/program.h"

namespace muster {
namespace {

using Words = std::vector<std::string>;

struct Peer {
  const char* name;
  const char* program;
  const char* launcher;  ///< null: the driver starts each rank itself
  const char* packages;
};

constexpr std::array<Peer, 3> kPeers = {{
    {"gloo", "peer_gloo", nullptr, "libtorch-dev and libgloo-dev"},
    {"openmpi", "peer_openmpi", "mpirun.openmpi", "openmpi-bin and libopenmpi-dev"},
    {"mpich", "peer_mpich", "mpirun.mpich", "mpich and libmpich-dev"},
}};

bool is_built(const Peer& peer, const std::filesystem::path& programs, const std::string& search_path) {
  if (!std::filesystem::exists(programs / peer.program)) return false;
  if (peer.launcher == nullptr) return true;
  try {
    find_program(peer.launcher, search_path);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class Commands {
 public:
  Commands(const BenchSettings& settings, int ranks, int cores)
      : settings_(settings), ranks_(std::to_string(ranks)), crowded_(ranks > cores) {}

  std::vector<SubjectCommand> all() {
    muster();
    for (const auto& peer : settings_.peers) {
      if (peer == "gloo") gloo();
      if (peer == "openmpi") open_mpi();
      if (peer == "mpich") mpich();
    }
    if (settings_.collective == "allreduce" && std::filesystem::exists(program("peer_floor"))) floor();
    return std::move(commands_);
  }

 private:
  std::string program(const std::string& name) const { return settings_.programs / name; }

  void add(BenchVariant of, std::vector<Words> processes, std::map<std::string, std::string> variables = {}) {
    commands_.push_back(
        {.of = std::move(of), .processes = std::move(processes), .variables = std::move(variables)});
  }

  void muster() {
    const Words memories = settings_.tcp ? Words{"heap"} : settings_.memory;
    const Words algorithms = settings_.algorithms.empty() ? Words{""} : settings_.algorithms;
    for (const auto& memory : memories) {
      for (const auto& algorithm : algorithms) {
        Words words = {program("muster"),
                       "run",
                       "--workers",
                       ranks_,
                       "--no-tune",
                       "--",
                       program("muster_bench_rank"),
                       "DIR",
                       "--memory",
                       memory};
        if (settings_.tcp) words = words + Words{"--shared-memory", "off"};
        if (!algorithm.empty()) words = words + Words{"--algorithm", algorithm};
        add({"muster", (settings_.tcp ? "tcp" : memory) + (algorithm.empty() ? "" : " " + algorithm)},
            {words + settings_.flags});
      }
    }
  }

  // gloo has TCP only; on the loopback interface in both transports.
  void gloo() {
    std::vector<Words> processes;
    for (int rank = 0; rank < std::stoi(ranks_); ++rank)
      processes.push_back({program("peer_gloo"), "DIR", std::to_string(rank), ranks_});
    add({"gloo", "tcp"}, std::move(processes));
  }

  void open_mpi() {
    struct Transport {
      std::string name;
      Words options;
    };
    const std::vector<Transport> shared_memory = {
        {"vader cma", {"--mca", "btl", "vader,self", "--mca", "btl_vader_single_copy_mechanism", "cma"}},
        {"vader copy", {"--mca", "btl", "vader,self", "--mca", "btl_vader_single_copy_mechanism", "none"}}};
    const std::vector<Transport> tcp = {
        {"tcp", {"--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"}}};
    const std::map<std::string, std::string> variables = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                                          {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                                          {"OMPI_MCA_rmaps_base_oversubscribe", "1"}};
    // Open MPI's collectives get and free memory in each call; glibc gives it back to the system each time,
    // and faults it in again, unless it is told to keep it.
    std::map<std::string, std::string> keep_heap = {{"MALLOC_TRIM_THRESHOLD_", "68719476736"},
                                                    {"MALLOC_TOP_PAD_", "67108864"},
                                                    {"MALLOC_MMAP_THRESHOLD_", "68719476736"}};
    keep_heap.insert(variables.begin(), variables.end());
    for (const auto& transport : settings_.tcp ? tcp : shared_memory) {
      Words words = Words{"mpirun.openmpi", "-n", ranks_, "--bind-to", "none", "--mca", "pml", "ob1"} +
                    transport.options;
      if (crowded_) words = words + Words{"--mca", "mpi_yield_when_idle", "1"};
      words = words + Words{program("peer_openmpi"), "DIR"};
      const std::string suffix = crowded_ ? ", yielding" : "";
      add({"openmpi", transport.name + suffix}, {words}, variables);
      add({"openmpi", transport.name + ", heap kept" + suffix}, {words}, keep_heap);
    }
  }

  // Debian's MPICH 4.0 is built on UCX, and without any call that yields: when ranks share a core, each spins
  // to the end of its time slice.
  void mpich() {
    const Words words = {"mpirun.mpich", "-n", ranks_, program("peer_mpich"), "DIR"};
    const std::string suffix = crowded_ ? ", spinning" : "";
    if (settings_.tcp) {
      add({"mpich", "ucx tcp" + suffix}, {words},
          {{"MPIR_CVAR_NOLOCAL", "1"}, {"UCX_TLS", "tcp,self"}, {"UCX_NET_DEVICES", "lo"}});
    } else {
      add({"mpich", "default" + suffix}, {words});
    }
  }

  void floor() { add({"floor", "shared mapping"}, {{program("peer_floor"), "DIR", ranks_}}); }

  const BenchSettings& settings_;
  const std::string ranks_;
  const bool crowded_;  // more ranks than cores
  std::vector<SubjectCommand> commands_;
};

}  // namespace

std::vector<SubjectCommand> subject_commands(const BenchSettings& settings, int ranks, int cores) {
  return Commands(settings, ranks, cores).all();
}

std::vector<std::string> choose_from(const std::vector<PeerState>& peers,
                                     const std::vector<std::string>& named) {
  std::vector<std::string> chosen;
  std::vector<std::string> known;
  for (const auto& peer : peers) {
    known.push_back(peer.name);
    if (named.empty() && peer.missing.empty()) chosen.push_back(peer.name);
  }
  for (const auto& name : named) {
    const auto peer =
        std::find_if(peers.begin(), peers.end(), [&](const PeerState& each) { return each.name == name; });
    if (peer == peers.end())
      raise<InvalidArgument>("--peers: '{}' is not one of {}{}", name, fmt::join(known, ", "),
                             suggestion(name, known));
    if (!peer->missing.empty()) raise<InvalidArgument>("--peers: {} {}", name, peer->missing);
    if (std::find(chosen.begin(), chosen.end(), name) == chosen.end()) chosen.push_back(name);
  }
  return chosen;
}

std::vector<std::string> choose_peers(const std::vector<std::string>& named,
                                      const std::filesystem::path& programs, const std::string& search_path) {
  std::vector<PeerState> peers;
  for (const auto& peer : kPeers) {
    std::string missing;
    if (!is_built(peer, programs, search_path))
      missing = fmt::format(
          "is not built: there is no {} in {}{}. Install {} (scripts/bootstrap bench), then configure and "
          "build again",
          peer.program, programs.string(),
          peer.launcher == nullptr ? "" : fmt::format(", or no {} in PATH", peer.launcher), peer.packages);
    peers.push_back({peer.name, missing});
  }
  return choose_from(peers, named);
}

}  // namespace muster
