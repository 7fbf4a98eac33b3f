#include "muster/base/copy_kernels_impl.h"

namespace muster::detail {

extern const CopyKernels kAvx2CopyKernels;
const CopyKernels kAvx2CopyKernels = {.copy = copy, .stream = stream, .name = "AVX2"};

}  // namespace muster::detail
