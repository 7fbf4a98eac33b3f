#pragma once

// The settings that make libraries use the processor that is there. Three guess badly: OpenBLAS falls back to
// a kernel of 2004 on a processor that it does not know (a quarter of the speed, or less); oneDNN uses AMX
// tiles where they are advertised but not described, and dies with SIGILL; and glibc copies with `rep movsb`
// where that can be ten times as slow as a loop. `muster run` sets these variables for its tasks; a program
// that was started directly is told of the first two. Of the third it is not, since tensors that Muster moves
// are copied by copy.h: what is left are the copies of libtorch and of the program itself.
//
// Pure functions, but for loaded_blas(), which asks the dynamic linker; any thread may call them. Nothing
// blocks or throws.

#include <string>
#include <vector>

#include "muster/base/cpu.h"
#include "muster/base/environment.h"

namespace muster::detail {

struct TuneVariable {
  std::string name;
  std::string value;
};

/// What to set for each of `tasks` tasks that share `cores` cores, leaving out what `environment` already
/// chooses. GLIBC_TUNABLES is a list: the value has what `environment` has there, and one entry more.
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

}  // namespace muster::detail
