#include "bench/collective/subjects.h"

#include <array>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/find_program.h"

namespace muster::detail::bench::collective {
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

bool is_built(const Peer& peer, const Surroundings& surroundings) {
  if (!surroundings.has(peer.program)) return false;
  if (peer.launcher == nullptr) return true;
  try {
    find_program(peer.launcher, surroundings.search_path());
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
  Commands(const Settings& settings, int ranks, int cores)
      : settings_(settings), count_(ranks), ranks_(std::to_string(ranks)), oversubscribed_(ranks > cores) {}

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

  void add(Variant of, std::vector<Words> processes, std::map<std::string, std::string> variables = {}) {
    commands_.push_back({.of = std::move(of),
                         .workers = count_,
                         .processes = std::move(processes),
                         .variables = std::move(variables)});
  }

  void muster() {
    muster("muster", settings_.programs);
    if (!settings_.baseline.empty()) muster("baseline", settings_.baseline);
  }

  void muster(const std::string& subject, const std::filesystem::path& programs) {
    const Words memories = settings_.tcp ? Words{"heap"} : settings_.memory;
    const Words algorithms = settings_.algorithms.empty() ? Words{""} : settings_.algorithms;
    for (const auto& memory : memories) {
      for (const auto& algorithm : algorithms) {
        Words words = {programs / "muster",
                       "run",
                       "--workers",
                       ranks_,
                       "--no-tune",
                       "--",
                       programs / "muster_bench_rank",
                       "DIR",
                       "--memory",
                       memory};
        if (settings_.tcp) words = words + Words{"--shared-memory", "off"};
        if (!algorithm.empty()) words = words + Words{"--algorithm", algorithm};
        add({subject, (settings_.tcp ? "tcp" : memory) + (algorithm.empty() ? "" : " " + algorithm)},
            {words + settings_.flags});
      }
    }
  }

  // gloo has TCP only; on the loopback interface in both transports.
  void gloo() {
    std::vector<Words> processes;
    for (int rank = 0; rank < count_; ++rank)
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
      if (oversubscribed_) words = words + Words{"--mca", "mpi_yield_when_idle", "1"};
      words = words + Words{program("peer_openmpi"), "DIR"};
      const std::string suffix = oversubscribed_ ? ", yielding" : "";
      add({"openmpi", transport.name + suffix}, {words}, variables);
      add({"openmpi", transport.name + ", heap kept" + suffix}, {words}, keep_heap);
    }
  }

  // Debian's MPICH 4.0 is built on UCX, and without any call that yields: when ranks share a core, each spins
  // to the end of its time slice.
  void mpich() {
    const Words words = {"mpirun.mpich", "-n", ranks_, program("peer_mpich"), "DIR"};
    const std::string suffix = oversubscribed_ ? ", spinning" : "";
    if (settings_.tcp) {
      add({"mpich", "ucx tcp" + suffix}, {words},
          {{"MPIR_CVAR_NOLOCAL", "1"}, {"UCX_TLS", "tcp,self"}, {"UCX_NET_DEVICES", "lo"}});
    } else {
      add({"mpich", "default" + suffix}, {words});
    }
  }

  void floor() { add({"floor", "shared mapping"}, {{program("peer_floor"), "DIR", ranks_}}); }

  const Settings& settings_;
  const int count_;
  const std::string ranks_;    // the same as a word
  const bool oversubscribed_;  // more ranks than cores
  std::vector<SubjectCommand> commands_;
};

}  // namespace

const std::vector<std::string>& collectives() {
  static const std::vector<std::string> all = {"allreduce", "reducescatter", "allgather", "broadcast",
                                               "reduce",    "alltoall",      "barrier"};
  return all;
}

bool is_in_place(std::string_view collective) {
  return collective != "reducescatter" && collective != "allgather" && collective != "alltoall";
}

int64_t round_up(std::string_view collective, int64_t bytes, int ranks) {
  const int64_t unit = static_cast<int64_t>(sizeof(float)) * (is_in_place(collective) ? 1 : ranks);
  return (bytes + unit - 1) / unit * unit;
}

std::vector<SubjectCommand> subjects(const Settings& settings, int ranks, int cores) {
  return Commands(settings, ranks, cores).all();
}

std::vector<PeerState> peers(const Surroundings& surroundings) {
  std::vector<PeerState> states;
  for (const auto& peer : kPeers) {
    std::string missing;
    if (!is_built(peer, surroundings))
      missing = fmt::format(
          "is not built: there is no {} in {}{}. Install {} (scripts/bootstrap bench), then configure and "
          "build again",
          peer.program, surroundings.programs.string(),
          peer.launcher == nullptr ? "" : fmt::format(", or no {} in PATH", peer.launcher), peer.packages);
    states.push_back({peer.name, missing});
  }
  return states;
}

}  // namespace muster::detail::bench::collective
