#pragma once

// The table of subjects of collectives: which programs are compared, in which variants, and by which command
// line each is started. Pure, but for the question whether a program is there.
//
// A peer's program stands beside muster-bench when it was built (bench/CMakeLists.txt). The floor is no peer:
// it is always measured where it applies.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "bench/driver/peers.h"
#include "bench/driver/subject.h"

namespace muster::detail::bench::collective {

/// allreduce, reducescatter, allgather, broadcast, reduce, alltoall, barrier.
const std::vector<std::string>& collectives();

/// Whether one buffer is both input and output. Where there are two, one of them has a block for each rank.
bool is_in_place(std::string_view collective);

/// `bytes` rounded up to whole float32 elements, the same number for every rank where each has a block of its
/// own.
int64_t round_up(std::string_view collective, int64_t bytes, int ranks);

struct Settings {
  std::string collective = "allreduce";
  bool tcp = false;                                     ///< over the loopback interface; else shared memory
  std::vector<std::string> peers;                       ///< as choose_from() gives them
  std::vector<std::string> memory = {"arena", "heap"};  ///< where Muster's buffers are; a variant each
  std::vector<std::string> algorithms;                  ///< of Muster; a variant each; empty: its own choice
  std::vector<std::string> flags;                       ///< more, for muster_bench_rank
  std::filesystem::path programs;                       ///< the folder of muster and the peers
  std::filesystem::path baseline = {};                  ///< the same of another build; empty: none
};

/// All variants for `ranks` ranks: Muster first, the peers, the floor.
std::vector<SubjectCommand> subjects(const Settings& settings, int ranks, int cores);

/// gloo, openmpi and mpich, for choose_from().
std::vector<PeerState> peers(const Surroundings& surroundings);

}  // namespace muster::detail::bench::collective
