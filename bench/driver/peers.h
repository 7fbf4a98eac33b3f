#pragma once

// What is here to be measured: the programs beside muster-bench, and what peers need of the system. A peer is
// a subject that is not Muster.

#include <filesystem>
#include <string>
#include <vector>

#include "muster/base/environment.h"

namespace muster::detail::bench {

/// Where muster-bench runs.
struct Surroundings {
  Environment environment;         ///< without what a launcher said that we are
  std::filesystem::path programs;  ///< the folder of muster, muster-bench and the peers

  static Surroundings of_process();

  std::string search_path() const;  ///< PATH
  std::string program(const std::string& name) const { return programs / name; }
  bool has(const std::string& name) const { return std::filesystem::exists(programs / name); }

  /// "is not built: ...", or nothing when the program is there.
  std::string why_not(const std::string& name) const;
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

/// Throws InvalidArgument that names `what`, with the nearest of those `known`.
void check_is_one_of(const std::string& what, const std::string& value,
                     const std::vector<std::string>& known);

/// Throws InvalidArgument, with how to build it, when `program` is not in `folder`.
void check_is_built(const std::filesystem::path& folder, const std::string& program);

/// What a peer in Python lacks when there is no find_torch_python().
extern const char* const kNoTorch;

/// The first of these programs that is a Python and has torch; empty when none is. Starts each.
std::string find_torch_python(const std::vector<std::string>& candidates);

/// Whether this Python has the module, and the name in it. Starts it.
bool can_import(const std::string& python, const std::string& module, const std::string& name);

/// What PyTorch's RPC lacks with this Python, which is empty when there is none with torch; nothing when it
/// can run. Starts it.
std::string why_not_torch_rpc(const std::string& python);

/// /usr/bin/python3, whose torch is on the same libtorch as we are; then those of `search_path` (as PATH).
std::vector<std::string> python_candidates(const std::string& search_path);

/// A library that keeps memory that was freed, to be loaded before a peer's; empty when there is none.
std::string find_allocator();

}  // namespace muster::detail::bench
