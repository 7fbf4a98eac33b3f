#include "muster/base/convert.h"

#include "muster/base/copy.h"
#include "muster/base/error.h"

namespace muster::detail {

extern const ConvertKernels kPortableConvertKernels;
#if defined(__x86_64__)
extern const ConvertKernels kAvx2ConvertKernels;
extern const ConvertKernels kAvx512ConvertKernels;
#endif

const ConvertKernels* convert_kernels_of(KernelSet set) {
  if (!can_run(set)) return nullptr;
#if defined(__x86_64__)
  if (set == KernelSet::kAvx512) return &kAvx512ConvertKernels;
  if (set == KernelSet::kAvx2) return &kAvx2ConvertKernels;
#endif
  return &kPortableConvertKernels;
}

void convert(DType from, const void* source, DType to, void* destination, size_t count) {
  static const ConvertKernels& best = best_kernels(convert_kernels_of);
  if (from == to) {
    copy_bytes(destination, source, count * size_of(from));
  } else if (from == DType::kFloat16 && to == DType::kFloat32) {
    best.widen_float16(static_cast<const Float16*>(source), static_cast<float*>(destination), count);
  } else if (from == DType::kBFloat16 && to == DType::kFloat32) {
    best.widen_bfloat16(static_cast<const BFloat16*>(source), static_cast<float*>(destination), count);
  } else if (from == DType::kFloat32 && to == DType::kFloat16) {
    best.narrow_float16(static_cast<const float*>(source), static_cast<Float16*>(destination), count);
  } else if (from == DType::kFloat32 && to == DType::kBFloat16) {
    best.narrow_bfloat16(static_cast<const float*>(source), static_cast<BFloat16*>(destination), count);
  } else {
    raise<InvalidArgument>("cannot convert {} to {}: only float32 to float16 or bfloat16, and back",
                           name_of(from), name_of(to));
  }
}

}  // namespace muster::detail
