#include "muster/base/copy_kernels_impl.h"

namespace muster::detail {

extern const CopyKernels kPortableCopyKernels;
const CopyKernels kPortableCopyKernels = {.copy = copy, .stream = stream, .name = "portable"};

}  // namespace muster::detail
