#include "muster/base/copy_kernels_impl.h"

namespace muster {

extern const CopyKernels kAvx2CopyKernels;
const CopyKernels kAvx2CopyKernels = {.copy = copy, .stream = stream, .name = "AVX2"};

}  // namespace muster
