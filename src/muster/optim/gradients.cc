#include "muster/optim/gradients.h"

#include <cstring>

#include "muster/base/error.h"
#include "muster/optim/update_kernels.h"

namespace muster::detail {

namespace {

void require_float(const char* function, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kFloat16:
    case DType::kBFloat16:
      return;
    default:
      raise<InvalidArgument>("{}: gradients of {}; expected float32, float64, float16 or bfloat16", function,
                             name_of(dtype));
  }
}

}  // namespace

void add_up(DType dtype, std::span<const WeightedSource> sources, void* sum, size_t count) {
  require_float("add_up", dtype);
  if (count == 0) return;
  if (sources.empty()) {
    memset(sum, 0, count * (dtype == DType::kFloat64 ? sizeof(double) : sizeof(float)));
    return;
  }
  update_kernels().add_up(dtype, sources, sum, count);
}

double sum_of_squares(DType dtype, const void* data, size_t count) {
  if (dtype != DType::kFloat32 && dtype != DType::kFloat64) {
    raise<InvalidArgument>("sum_of_squares: values of {}; expected float32 or float64", name_of(dtype));
  }
  return update_kernels().sum_of_squares(dtype, data, count);
}

bool all_finite(DType dtype, const void* data, size_t count) {
  require_float("all_finite", dtype);
  return update_kernels().all_finite(dtype, data, count);
}

double clip_factor(double norm, double limit) {
  constexpr double kEpsilon = 1e-6;  // torch's
  return limit > 0 && norm > limit ? limit / (norm + kEpsilon) : 1;
}

}  // namespace muster::detail
