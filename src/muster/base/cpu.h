#pragma once

// What the processor says of itself (CPUID), and how many cores this process may use.

#include <string>

namespace muster {

struct CpuFeatures {
  std::string brand;
  bool amd = false;
  bool avx2 = false;    ///< AVX2 and FMA, enabled by the operating system
  bool avx512 = false;  ///< F, CD, BW, DQ and VL, enabled by the operating system
  bool avx512_vnni = false;
  bool avx512_bf16 = false;
  bool amx = false;            ///< AMX tiles are advertised
  bool amx_described = false;  ///< ... and leaf 0x1D describes them; libraries that use tiles crash without

  static CpuFeatures detect();
};

/// The cores that this process may run on (its affinity mask).
int available_cores();

}  // namespace muster
