#include "muster/optim/update_kernels.h"

namespace muster::detail {

extern const UpdateKernels kPortableUpdateKernels;
#if defined(__x86_64__)
extern const UpdateKernels kAvx2UpdateKernels;
extern const UpdateKernels kAvx512UpdateKernels;
#endif

const UpdateKernels* update_kernels_of(KernelSet set) {
  if (!can_run(set)) return nullptr;
#if defined(__x86_64__)
  if (set == KernelSet::kAvx512) return &kAvx512UpdateKernels;
  if (set == KernelSet::kAvx2) return &kAvx2UpdateKernels;
#endif
  return &kPortableUpdateKernels;
}

const UpdateKernels& update_kernels() {
  static const UpdateKernels& best = best_kernels(update_kernels_of);
  return best;
}

}  // namespace muster::detail
