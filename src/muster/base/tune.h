#pragma once

// The settings that make BLAS and oneDNN use the processor that is there. Two libraries guess badly: OpenBLAS
// falls back to a kernel of 2004 on a processor that it does not know (a quarter of the speed, or less), and
// oneDNN uses AMX tiles where they are advertised but not described, and dies with SIGILL. `muster run` sets
// these variables for its tasks; a program that was started directly is told.

#include <string>
#include <vector>

#include "muster/base/cpu.h"
#include "muster/base/environment.h"

namespace muster {

struct TuneVariable {
  std::string name;
  std::string value;
};

/// What to set for each of `tasks` tasks that share `cores` cores, leaving out what `environment` already
/// chooses.
std::vector<TuneVariable> tuning(const CpuFeatures& cpu, int cores, int tasks,
                                 const Environment& environment);

/// What a process can see of the BLAS that it has loaded.
struct LoadedBlas {
  std::string library;  ///< the path; empty when none is loaded
  std::string kernel;   ///< OpenBLAS's name for the kernel it chose; empty when it is another library
};
LoadedBlas loaded_blas();

/// One sentence for each setting of this process that is slow or unsafe, with its remedy.
std::vector<std::string> tuning_problems(const CpuFeatures& cpu, const LoadedBlas& blas,
                                         const Environment& environment);

}  // namespace muster
