#pragma once

// What is done to gradients before an update, over plain memory. Without state: any thread may call it, on
// any range.

#include <cstddef>
#include <span>

#include "muster/base/dtype.h"

namespace muster::detail {

/// One worker's gradient and what it counts for.
struct WeightedSource {
  const void* data = nullptr;
  double weight = 1;
};

/// sum[i] = weight_0 * source_0[i] + weight_1 * source_1[i] + ..., added in the order of the sources. With
/// weights of 1 it is the plain sum, bit for bit. `dtype` is that of the sources; the sum is float64 for
/// float64 and float32 for float32, float16 and bfloat16. No sources: zeros. The sum may be one of the
/// sources where the types are the same.
void add_up(DType dtype, std::span<const WeightedSource> sources, void* sum, size_t count);

/// The sum of the squares, in double; infinite or NaN when an element is. float32 or float64. The bits depend
/// on `count` only, not on the machine.
double sum_of_squares(DType dtype, const void* data, size_t count);

/// Whether no element is infinite or not a number. float32, float64, float16 or bfloat16.
bool all_finite(DType dtype, const void* data, size_t count);

/// What scales a gradient of this norm down to `limit`, as torch's clip_grad_norm_ does; 1 where it is not
/// above it, or the limit is 0.
double clip_factor(double norm, double limit);

}  // namespace muster::detail
