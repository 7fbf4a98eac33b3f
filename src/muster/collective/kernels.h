#pragma once

// The arithmetic of collectives over plain memory. Three builds of the same code, for AVX-512, AVX2 and any
// processor, give the same bits; the best that this machine has is chosen at run time. Without state: any
// thread may call them.

#include <cstddef>
#include <span>

#include "muster/base/cpu.h"
#include "muster/base/dtype.h"
#include "muster/collective/operation.h"

namespace muster::detail {

struct Reduction {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int divisor = 1;  ///< what the result is divided by: an average's number of ranks, in its last step
};

struct Kernels {
  /// destinations[k][i] = (...(sources[0][i] op sources[1][i]) op ...) / divisor, for every k. Sources are
  /// taken in their order. fp16 and bf16 are accumulated in fp32 and rounded once, int8 and int32 in wider
  /// integers. A destination may be one of the sources; otherwise nothing overlaps.
  void (*reduce)(const Reduction& reduction, std::span<const void* const> sources,
                 std::span<void* const> destinations, size_t count);

  const char* name;
};

/// The best set for this machine.
const Kernels& kernels();

/// A particular one; nullptr when this machine or this build does not have it.
const Kernels* kernels_of(KernelSet set);

}  // namespace muster::detail
