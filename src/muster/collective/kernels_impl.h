// The kernels, compiled once for each instruction set by kernels_portable.cc, kernels_avx2.cc and
// kernels_avx512.cc. Everything is in an unnamed namespace and always optimised, so that library functions
// are inlined: the linker must not take one that was compiled for one processor into another's path.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "muster/base/half_floats.h"
#include "muster/collective/kernels.h"

namespace muster::detail {
namespace {

struct Sum {
  template <typename T>
  static T apply(T a, T b) {
    return a + b;
  }
};
// What is not a number stays so, whichever rank has it, as in torch.
template <typename T>
bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) return value != value;
  return false;
}
struct Min {
  template <typename T>
  static T apply(T a, T b) {
    return b < a || is_nan(b) ? b : a;
  }
};
struct Max {
  template <typename T>
  static T apply(T a, T b) {
    return a < b || is_nan(b) ? b : a;
  }
};
struct Product {
  template <typename T>
  static T apply(T a, T b) {
    return a * b;
  }
};

// A tile of accumulators stays in the first-level cache.
constexpr size_t kTile = 1024;

// In what a type is accumulated. Integers are unsigned there where they may overflow: they wrap.
template <typename T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<Float16> {
  using type = float;
};
template <>
struct Accumulator<BFloat16> {
  using type = float;
};
template <>
struct Accumulator<int8_t> {
  using type = int32_t;
};
template <>
struct Accumulator<int32_t> {
  using type = int64_t;
};

template <typename T, typename A>
void load(const T* source, A* tile, size_t count) {
  if constexpr (requires { widen(source, tile, count); }) {
    widen(source, tile, count);
  } else {
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): int8 is a number here
    for (size_t i = 0; i < count; ++i) tile[i] = static_cast<A>(source[i]);
  }
}

template <typename T, typename A>
void store(const A* tile, T* destination, size_t count) {
  if constexpr (requires { narrow(tile, destination, count); }) {
    narrow(tile, destination, count);
  } else {
    for (size_t i = 0; i < count; ++i) destination[i] = static_cast<T>(tile[i]);
  }
}

template <typename Op, typename A>
void accumulate(A* tile, const A* more, size_t count) {
  for (size_t i = 0; i < count; ++i) tile[i] = Op::apply(tile[i], more[i]);
}

template <typename A>
void divide(A* tile, int divisor, size_t count) {
  if constexpr (static_cast<A>(0.5) != A{}) {
    const A factor = A{1} / static_cast<A>(divisor);
    for (size_t i = 0; i < count; ++i) tile[i] *= factor;
  } else {
    for (size_t i = 0; i < count; ++i) tile[i] /= static_cast<A>(divisor);
  }
}

template <typename T, typename Op>
void reduce_by(std::span<const void* const> sources, std::span<void* const> destinations, size_t count,
               int divisor) {
  using A = typename Accumulator<T>::type;
  alignas(64) A tile[kTile];
  alignas(64) A more[kTile];
  for (size_t at = 0; at < count; at += kTile) {
    const size_t size = count - at < kTile ? count - at : kTile;
    load(static_cast<const T*>(sources[0]) + at, tile, size);
    for (size_t i = 1; i < sources.size(); ++i) {
      const T* source = static_cast<const T*>(sources[i]) + at;
      if constexpr (__is_same(T, A)) {
        accumulate<Op>(tile, source, size);
      } else {
        load(source, more, size);
        accumulate<Op>(tile, more, size);
      }
    }
    if (divisor != 1) divide(tile, divisor, size);
    for (void* destination : destinations) store(tile, static_cast<T*>(destination) + at, size);
  }
}

// Two ranks, the most frequent case, without a tile.
template <typename T, typename Op>
void reduce_two(const T* a, const T* b, T* x, T* y, size_t count) {
  if (x == y) {
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) x[i] = Op::apply(a[i], b[i]);
  } else {
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) {
      const T result = Op::apply(a[i], b[i]);
      x[i] = result;
      y[i] = result;
    }
  }
}

template <typename T, typename Op>
void reduce_as(std::span<const void* const> sources, std::span<void* const> destinations, size_t count,
               int divisor) {
  if constexpr (__is_same(T, float) || __is_same(T, double)) {
    if (sources.size() == 2 && destinations.size() <= 2 && divisor == 1) {
      return reduce_two<T, Op>(static_cast<const T*>(sources[0]), static_cast<const T*>(sources[1]),
                               static_cast<T*>(destinations[0]), static_cast<T*>(destinations.back()), count);
    }
  }
  reduce_by<T, Op>(sources, destinations, count, divisor);
}

template <typename T>
void reduce_type(const Reduction& reduction, std::span<const void* const> sources,
                 std::span<void* const> destinations, size_t count) {
  switch (reduction.op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return reduce_as<T, Sum>(sources, destinations, count, reduction.divisor);
    case ReduceOp::kMin:
      return reduce_as<T, Min>(sources, destinations, count, 1);
    case ReduceOp::kMax:
      return reduce_as<T, Max>(sources, destinations, count, 1);
    case ReduceOp::kProduct:
      return reduce_as<T, Product>(sources, destinations, count, 1);
  }
}

void reduce(const Reduction& reduction, std::span<const void* const> sources,
            std::span<void* const> destinations, size_t count) {
  switch (reduction.dtype) {
    case DType::kFloat32:
      return reduce_type<float>(reduction, sources, destinations, count);
    case DType::kFloat64:
      return reduce_type<double>(reduction, sources, destinations, count);
    case DType::kFloat16:
      return reduce_type<Float16>(reduction, sources, destinations, count);
    case DType::kBFloat16:
      return reduce_type<BFloat16>(reduction, sources, destinations, count);
    case DType::kInt8:
      return reduce_type<int8_t>(reduction, sources, destinations, count);
    case DType::kInt32:
      return reduce_type<int32_t>(reduction, sources, destinations, count);
    case DType::kInt64:
      return reduce_type<int64_t>(reduction, sources, destinations, count);
  }
}

}  // namespace
}  // namespace muster::detail
