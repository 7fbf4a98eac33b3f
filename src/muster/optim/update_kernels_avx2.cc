#include "muster/optim/update_kernels_impl.h"

namespace muster::detail {

extern const UpdateKernels kAvx2UpdateKernels;
const UpdateKernels kAvx2UpdateKernels = make_kernels("AVX2");

}  // namespace muster::detail
