#include "muster/base/convert.h"
#include "muster/base/half_floats.h"

namespace muster::detail {

extern const ConvertKernels kAvx512ConvertKernels;
const ConvertKernels kAvx512ConvertKernels = {.widen_float16 = widen,
                                              .widen_bfloat16 = widen,
                                              .narrow_float16 = narrow,
                                              .narrow_bfloat16 = narrow,
                                              .name = "AVX-512"};

}  // namespace muster::detail
