#include "muster/base/copy.h"

namespace muster::detail {

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

namespace {

void copy_by_library(void* destination, const void* source, size_t bytes) {
  if (bytes >= kLargeCopy) return best_kernels(copy_kernels_of).stream(destination, source, bytes);
  std::memcpy(destination, source, bytes);
}

CopyKernels choose_copy_kernels() {
  CopyKernels chosen = best_kernels(copy_kernels_of);
  if (!CpuFeatures::detect().copies_slowly()) chosen.copy = copy_by_library;
  return chosen;
}

}  // namespace

const CopyKernels& copy_kernels() {
  static const CopyKernels chosen = choose_copy_kernels();
  return chosen;
}

}  // namespace muster::detail
