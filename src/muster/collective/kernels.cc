#include "muster/collective/kernels.h"

namespace muster {

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

const Kernels* kernels_of(KernelSet set) {
  switch (set) {
#if defined(__x86_64__)
    case KernelSet::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
                 ? &kAvx512Kernels
                 : nullptr;
    case KernelSet::kAvx2:
      // With F16C, which came before it.
      return __builtin_cpu_supports("avx2") ? &kAvx2Kernels : nullptr;
#endif
    case KernelSet::kPortable:
      return &kPortableKernels;
    default:
      return nullptr;
  }
}

const Kernels& kernels() {
  static const Kernels& best = []() -> const Kernels& {
    for (const auto set : {KernelSet::kAvx512, KernelSet::kAvx2}) {
      if (const Kernels* found = kernels_of(set)) return *found;
    }
    return kPortableKernels;
  }();
  return best;
}

}  // namespace muster
