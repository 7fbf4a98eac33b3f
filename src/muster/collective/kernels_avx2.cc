#include "muster/collective/kernels_impl.h"

namespace muster::detail {

extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = {.reduce = reduce, .name = "AVX2"};

}  // namespace muster::detail
