#include "muster/optim/update_kernels.h"

namespace muster {

extern const UpdateKernels kPortableUpdateKernels;
#if defined(__x86_64__)
extern const UpdateKernels kAvx2UpdateKernels;
extern const UpdateKernels kAvx512UpdateKernels;
#endif

const UpdateKernels* update_kernels_of(UpdateKernelSet set) {
  switch (set) {
#if defined(__x86_64__)
    case UpdateKernelSet::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
                 ? &kAvx512UpdateKernels
                 : nullptr;
    case UpdateKernelSet::kAvx2:
      // With F16C, which came before it.
      return __builtin_cpu_supports("avx2") ? &kAvx2UpdateKernels : nullptr;
#endif
    case UpdateKernelSet::kPortable:
      return &kPortableUpdateKernels;
    default:
      return nullptr;
  }
}

const UpdateKernels& update_kernels() {
  static const UpdateKernels& best = []() -> const UpdateKernels& {
    for (const auto set : {UpdateKernelSet::kAvx512, UpdateKernelSet::kAvx2}) {
      if (const UpdateKernels* found = update_kernels_of(set)) return *found;
    }
    return kPortableUpdateKernels;
  }();
  return best;
}

}  // namespace muster
