#include "muster/collective/kernels_impl.h"

namespace muster::detail {

extern const Kernels kPortableKernels;
const Kernels kPortableKernels = {.reduce = reduce, .name = "portable"};

}  // namespace muster::detail
