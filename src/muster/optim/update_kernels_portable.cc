#include "muster/optim/update_kernels_impl.h"

namespace muster::detail {

extern const UpdateKernels kPortableUpdateKernels;
const UpdateKernels kPortableUpdateKernels = make_kernels("portable");

}  // namespace muster::detail
