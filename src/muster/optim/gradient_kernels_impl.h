// Sums of gradients and of squares: a part of update_kernels_impl.h, to which its rules apply.

#include <cstddef>
#include <cstdint>
#include <span>

#include "muster/base/half_floats.h"
#include "muster/optim/gradients.h"

namespace muster::detail {
namespace {

// A value is infinite or not a number when all bits of its exponent are set: then the lowest of them, added
// to the exponent, carries into the bit of the sign.
template <typename Bits, Bits kExponent>
struct ExponentBits {
  static constexpr Bits kLowest = kExponent & (~kExponent + 1);
  static constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));

  void add_bits(Bits bits) { carried = static_cast<Bits>(carried | ((bits & kExponent) + kLowest)); }
  bool all_finite() const { return (carried & kSign) == 0; }

  Bits carried = 0;
};
using ExponentBits64 = ExponentBits<uint64_t, 0x7ff0'0000'0000'0000>;
using ExponentBits32 = ExponentBits<uint32_t, 0x7f80'0000>;

template <typename T>
struct Exponents;
template <>
struct Exponents<double> : ExponentBits64 {
  void add(double value) { add_bits(__builtin_bit_cast(uint64_t, value)); }
};
template <>
struct Exponents<float> : ExponentBits32 {
  void add(float value) { add_bits(__builtin_bit_cast(uint32_t, value)); }
};

template <typename Bits, Bits kExponent>
bool all_finite_as(const void* data, size_t count) {
  ExponentBits<Bits, kExponent> exponents;
  for (size_t i = 0; i < count; ++i) {
    Bits bits;
    __builtin_memcpy(&bits, static_cast<const Bits*>(data) + i, sizeof(bits));
    exponents.add_bits(bits);
  }
  return exponents.all_finite();
}

// A tile of accumulators stays in the first-level cache, beside as much of four sources.
constexpr size_t kTile = 1024;

// As many sources are read at once.
constexpr size_t kTogether = 4;

template <typename T>
struct Source {
  const T* data;
  T weight;
};

// sum = weighted sources, on top of `before` if kMore. Any of them may be the sum.
template <typename T, size_t kSources, bool kMore>
void combine(const Source<T>* sources, const T* before, T* sum, size_t count) {
  const auto [a, weight_a] = sources[0];
  const auto [b, weight_b] = sources[kSources > 1 ? 1 : 0];
  const auto [c, weight_c] = sources[kSources > 2 ? 2 : 0];
  const auto [d, weight_d] = sources[kSources > 3 ? 3 : 0];
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    T total = weight_a * a[i];
    if constexpr (kMore) total = before[i] + total;
    if constexpr (kSources > 1) total = total + weight_b * b[i];
    if constexpr (kSources > 2) total = total + weight_c * c[i];
    if constexpr (kSources > 3) total = total + weight_d * d[i];
    sum[i] = total;
  }
}

template <typename T, bool kMore>
void combine_group(std::span<const Source<T>> group, const T* before, T* sum, size_t count) {
  switch (group.size()) {
    case 1:
      return combine<T, 1, kMore>(group.data(), before, sum, count);
    case 2:
      return combine<T, 2, kMore>(group.data(), before, sum, count);
    case 3:
      return combine<T, 3, kMore>(group.data(), before, sum, count);
    default:
      return combine<T, 4, kMore>(group.data(), before, sum, count);
  }
}

// Sources of T, summed in A. The last group writes the sum: it may be a source of any group.
template <typename T, typename A>
void add_up_as(std::span<const WeightedSource> sources, A* sum, size_t count) {
  constexpr bool kWiden = !__is_same(T, A);
  alignas(64) A totals[kTile];
  alignas(64) A wide[kWiden ? kTogether : 1][kTile];
  const size_t tile = kWiden || sources.size() > kTogether ? kTile : count;
  for (size_t at = 0; at < count; at += tile) {
    const size_t size = count - at < tile ? count - at : tile;
    for (size_t first = 0; first < sources.size(); first += kTogether) {
      const bool last = sources.size() - first <= kTogether;
      const size_t together = last ? sources.size() - first : kTogether;
      Source<A> group[kTogether];
      for (size_t i = 0; i < together; ++i) {
        const T* data = static_cast<const T*>(sources[first + i].data) + at;
        group[i].weight = static_cast<A>(sources[first + i].weight);
        if constexpr (kWiden) {
          widen(data, wide[i], size);
          group[i].data = wide[i];
        } else {
          group[i].data = data;
        }
      }
      A* destination = last ? sum + at : totals;
      if (first == 0) {
        combine_group<A, false>({group, together}, nullptr, destination, size);
      } else {
        combine_group<A, true>({group, together}, totals, destination, size);
      }
    }
  }
}

void add_up_kernel(DType dtype, std::span<const WeightedSource> sources, void* sum, size_t count) {
  switch (dtype) {
    case DType::kFloat64:
      return add_up_as<double>(sources, static_cast<double*>(sum), count);
    case DType::kFloat16:
      return add_up_as<Float16>(sources, static_cast<float*>(sum), count);
    case DType::kBFloat16:
      return add_up_as<BFloat16>(sources, static_cast<float*>(sum), count);
    default:
      return add_up_as<float>(sources, static_cast<float*>(sum), count);
  }
}

// In sixteen sums, whatever the width of a register, so that every build adds in the same order. All pieces
// but the last have a multiple of sixteen elements.
class SquareSum {
 public:
  template <typename T>
  void add(const T* data, size_t count) {
    typedef double Doubles __attribute__((vector_size(kWidth * sizeof(double))));
    typedef T Values __attribute__((vector_size(kWidth * sizeof(T))));
    Doubles sums[kLanes / kWidth];
    __builtin_memcpy(sums, lanes_, sizeof(sums));
    size_t at = 0;
    for (; at + kLanes <= count; at += kLanes) {
#pragma GCC unroll 8
      for (size_t i = 0; i < kLanes / kWidth; ++i) {
        Values values;
        __builtin_memcpy(&values, data + at + i * kWidth, sizeof(values));
        const Doubles wide = __builtin_convertvector(values, Doubles);
        sums[i] += wide * wide;
      }
    }
    __builtin_memcpy(lanes_, sums, sizeof(sums));
    for (size_t lane = 0; at < count; ++at, ++lane) {
      const auto wide = static_cast<double>(data[at]);
      lanes_[lane] += wide * wide;
    }
  }

  double total() const {
    double sums[kLanes];
    for (size_t i = 0; i < kLanes; ++i) sums[i] = lanes_[i];
    for (size_t half = kLanes / 2; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    return sums[0];
  }

 private:
#if defined(__AVX512F__)
  static constexpr size_t kWidth = 8;
#elif defined(__AVX2__)
  static constexpr size_t kWidth = 4;
#else
  static constexpr size_t kWidth = 2;
#endif
  static constexpr size_t kLanes = 16;

  double lanes_[kLanes] = {};
};

double sum_of_squares_kernel(DType dtype, const void* data, size_t count) {
  SquareSum sum;
  if (dtype == DType::kFloat64) {
    sum.add(static_cast<const double*>(data), count);
  } else {
    sum.add(static_cast<const float*>(data), count);
  }
  return sum.total();
}

bool all_finite_kernel(DType dtype, const void* data, size_t count) {
  switch (dtype) {
    case DType::kFloat64:
      return all_finite_as<uint64_t, 0x7ff0'0000'0000'0000>(data, count);
    case DType::kFloat16:
      return all_finite_as<uint16_t, 0x7c00>(data, count);
    case DType::kBFloat16:
      return all_finite_as<uint16_t, 0x7f80>(data, count);
    default:
      return all_finite_as<uint32_t, 0x7f80'0000>(data, count);
  }
}

}  // namespace
}  // namespace muster::detail
