#pragma once

// What the processor says of itself (CPUID), which kernels it can run, and how many cores this process may
// use. Pure functions; any thread may call them.

#include <cstdint>
#include <string>
#include <vector>

namespace muster::detail {

struct CpuFeatures {
  std::string brand;
  bool amd = false;
  int family = 0;       ///< as CPUID counts: 0x19 is Zen 3 and Zen 4, of those that are AMD's
  bool erms = false;    ///< `rep movsb` is said to be fast
  bool avx2 = false;    ///< AVX2 and FMA, enabled by the operating system
  bool avx512 = false;  ///< F, CD, BW, DQ and VL, enabled by the operating system
  bool avx512_vnni = false;
  bool avx512_bf16 = false;
  bool amx = false;            ///< AMX tiles are advertised
  bool amx_described = false;  ///< ... and leaf 0x1D describes them; libraries that use tiles crash without

  /// Whether glibc's copies are slow here. It takes `rep movsb` from about 2 KiB on where the processor says
  /// that it is fast (ERMS). AMD says so since Zen 3, family 0x19, where it falls from 31 to 2.8 GB/s when
  /// the destination lies 1 to 16 bytes behind the source modulo 4,096 (measured with glibc 2.36). Newer
  /// versions of glibc leave it alone on all of AMD's processors (bug 30994 of theirs), and so do we on later
  /// families.
  bool copies_slowly() const { return amd && erms && family >= 0x19; }

  static CpuFeatures detect();
};

/// Loops that are compiled from one source for three instruction sets (muster_kernels in
/// cmake/MusterRoom.cmake), and give the same bits.
enum class KernelSet { kPortable, kAvx2, kAvx512 };

/// Whether this build has the set, and this processor can run it.
bool can_run(KernelSet set);

/// The best set that this processor can run: `of` gives the kernels of one.
template <typename Kernels>
const Kernels& best_kernels(const Kernels* (*of)(KernelSet)) {
  for (const KernelSet set : {KernelSet::kAvx512, KernelSet::kAvx2}) {
    if (can_run(set)) return *of(set);
  }
  return *of(KernelSet::kPortable);
}

/// The cores that this process may run on (its affinity mask).
int available_cores();

/// The cores that these processes of this host may run on together: they may share them all, or be bound to
/// some each. Processes that can't be asked, as those of another container, are left out.
int available_cores(const std::vector<int64_t>& processes);

}  // namespace muster::detail
