#include "muster/optim/update_kernels_impl.h"

namespace muster::detail {

extern const UpdateKernels kAvx512UpdateKernels;
const UpdateKernels kAvx512UpdateKernels = make_kernels("AVX-512");

}  // namespace muster::detail
