#include "muster/optim/update_kernels_impl.h"

namespace muster {

extern const UpdateKernels kAvx2UpdateKernels;
const UpdateKernels kAvx2UpdateKernels = make_kernels("AVX2");

}  // namespace muster
