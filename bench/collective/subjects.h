#pragma once

// The table of subjects: which programs `muster bench` compares, in which variants, and by which command line
// each is started. Pure, but for the question whether a program is there. driver/processes.h runs them.
//
// A peer is a subject that is not Muster: gloo, openmpi, mpich. Its program stands beside `muster` when it
// was built (bench/CMakeLists.txt). The floor is no peer: it is always measured where it applies.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/collective/report.h"

namespace muster {

struct BenchSettings {
  std::string collective = "allreduce";
  bool tcp = false;                                     ///< over the loopback interface; else shared memory
  std::vector<std::string> peers;                       ///< as choose_peers() gives them
  std::vector<std::string> memory = {"arena", "heap"};  ///< where Muster's buffers are; a variant each
  std::vector<std::string> algorithms;                  ///< of Muster; a variant each; empty: its own choice
  std::vector<std::string> flags;                       ///< more, for muster_bench_rank
  std::filesystem::path programs;                       ///< the folder of muster and the peers
};

/// How one variant is started: one process or several, which become its ranks.
struct SubjectCommand {
  BenchVariant of;
  /// The arguments of each process, the program first. The word DIR stands for the folder of its FIFOs.
  std::vector<std::vector<std::string>> processes;
  std::map<std::string, std::string> variables = {};  ///< of the environment, beside what is there
  std::vector<std::string> without = {};              ///< variables that are taken out of what is there
  bool spins = false;  ///< its ranks use cores while they wait: they are stopped between their turns
};

/// A peer, and when it can't run: why not, and what to do.
struct PeerState {
  std::string name;
  std::string missing;
};

/// Those named, or all that can run when none are named; each once. Throws InvalidArgument for one that does
/// not exist or can't run.
std::vector<std::string> choose_from(const std::vector<PeerState>& peers,
                                     const std::vector<std::string>& named);

/// All variants for `ranks` ranks: Muster first, the peers, the floor.
std::vector<SubjectCommand> subject_commands(const BenchSettings& settings, int ranks, int cores);

/// choose_from() the peers of collectives. `search_path` (as PATH) is where mpirun is looked for.
std::vector<std::string> choose_peers(const std::vector<std::string>& named,
                                      const std::filesystem::path& programs, const std::string& search_path);

}  // namespace muster
