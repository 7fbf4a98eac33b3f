#include "muster/base/convert.h"
#include "muster/base/half_floats.h"

namespace muster::detail {

extern const ConvertKernels kPortableConvertKernels;
const ConvertKernels kPortableConvertKernels = {.widen_float16 = widen,
                                                .widen_bfloat16 = widen,
                                                .narrow_float16 = narrow,
                                                .narrow_bfloat16 = narrow,
                                                .name = "portable"};

}  // namespace muster::detail
