#include "muster/base/copy_kernels_impl.h"

namespace muster::detail {

extern const CopyKernels kAvx512CopyKernels;
const CopyKernels kAvx512CopyKernels = {.copy = copy, .stream = stream, .name = "AVX-512"};

}  // namespace muster::detail
