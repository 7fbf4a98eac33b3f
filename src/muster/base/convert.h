#pragma once

// Arrays of float32 to the 16-bit floats and back. Three builds of the same code, for AVX-512, AVX2 and any
// processor, give the same bits; the best that this machine has is chosen at run time. May be called from any
// thread.

#include <cstddef>

#include "muster/base/cpu.h"
#include "muster/base/dtype.h"

namespace muster::detail {

/// Between float32 and float16 or bfloat16; rounds to nearest, ties to even, as dtype.h does. From a type to
/// itself it is a copy. Source and destination do not overlap. Throws InvalidArgument for any other pair.
void convert(DType from, const void* source, DType to, void* destination, size_t count);

/// The loops of one build.
struct ConvertKernels {
  void (*widen_float16)(const Float16* source, float* destination, size_t count);
  void (*widen_bfloat16)(const BFloat16* source, float* destination, size_t count);
  void (*narrow_float16)(const float* source, Float16* destination, size_t count);
  void (*narrow_bfloat16)(const float* source, BFloat16* destination, size_t count);

  const char* name;
};

/// Those of a particular set; nullptr when this machine or this build does not have it.
const ConvertKernels* convert_kernels_of(KernelSet set);

}  // namespace muster::detail
