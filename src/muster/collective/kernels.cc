#include "muster/collective/kernels.h"

namespace muster::detail {

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

const Kernels* kernels_of(KernelSet set) {
  if (!can_run(set)) return nullptr;
#if defined(__x86_64__)
  if (set == KernelSet::kAvx512) return &kAvx512Kernels;
  if (set == KernelSet::kAvx2) return &kAvx2Kernels;
#endif
  return &kPortableKernels;
}

const Kernels& kernels() {
  static const Kernels& best = best_kernels(kernels_of);
  return best;
}

}  // namespace muster::detail
