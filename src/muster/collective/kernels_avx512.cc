#include "muster/collective/kernels_impl.h"

namespace muster::detail {

extern const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = {.reduce = reduce, .name = "AVX-512"};

}  // namespace muster::detail
