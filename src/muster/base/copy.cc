#include "muster/base/copy.h"

namespace muster {

extern const CopyKernels kPortableCopyKernels;
#if defined(__x86_64__)
extern const CopyKernels kAvx2CopyKernels;
extern const CopyKernels kAvx512CopyKernels;
#endif

const CopyKernels* copy_kernels_of(KernelSet set) {
  if (!can_run(set)) return nullptr;
#if defined(__x86_64__)
  if (set == KernelSet::kAvx512) return &kAvx512CopyKernels;
  if (set == KernelSet::kAvx2) return &kAvx2CopyKernels;
#endif
  return &kPortableCopyKernels;
}

const CopyKernels& copy_kernels() {
  static const CopyKernels& best = best_kernels(copy_kernels_of);
  return best;
}

}  // namespace muster
