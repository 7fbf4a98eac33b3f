#include "muster/collective/kernels_impl.h"

namespace muster {

extern const Kernels kPortableKernels;
const Kernels kPortableKernels = {.reduce = reduce, .name = "portable"};

}  // namespace muster
