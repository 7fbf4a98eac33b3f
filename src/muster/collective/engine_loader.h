#pragma once

// The engines over another library are modules of their own, libmuster_engine_<name>.so, loaded when they are
// asked for: no program loads MPI or libtorch for nothing. A module that was loaded stays until the process
// ends. Loading may take a second, in which the calling thread waits; any thread may load.

#include <memory>
#include <string>
#include <vector>

#include "muster/collective/communicator_options.h"
#include "muster/collective/engine.h"

namespace muster::detail {

/// What a module is. It exports one function: extern "C" const EngineModule* muster_engine_module().
struct EngineModule {
  const char* version;  ///< of the Muster that it was built with: its structures are those of that version
  std::unique_ptr<Engine> (*make)(const Communicator::Options& options, GroupState& state);
};

/// Where modules are looked for, in this order: beside the program, in the `lib` next to its folder, where
/// Muster was to be installed, and "", which stands for the system's search path (LD_LIBRARY_PATH too).
std::vector<std::string> engine_folders();

/// Makes the engine `options.engine`. Throws InvalidArgument when there is none of this name, when it was not
/// built, which says what to install, or when it is of another version of Muster; and what the engine throws.
std::unique_ptr<Engine> load_engine(const Communicator::Options& options, GroupState& state,
                                    const std::vector<std::string>& folders = engine_folders());

}  // namespace muster::detail
