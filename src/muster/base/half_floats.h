#pragma once

// The loops between float32 and the 16-bit floats, for sources that are compiled once for each instruction
// set (muster_kernels in cmake/MusterRoom.cmake); others call convert.h. Everything is in an unnamed
// namespace: the linker must not take what was compiled for one processor into another's path.

#include <cstddef>
#include <cstdint>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "muster/base/dtype.h"

namespace muster::detail {
namespace {

inline void widen(const BFloat16* source, float* destination, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(source[i].bits) << 16;
    destination[i] = __builtin_bit_cast(float, bits);
  }
}

inline void narrow(const float* source, BFloat16* destination, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const auto bits = __builtin_bit_cast(uint32_t, source[i]);
    const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40U;
    destination[i].bits = static_cast<uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded);
  }
}

inline void widen(const Float16* source, float* destination, size_t count) {
  size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
    _mm256_storeu_ps(destination + i, _mm256_cvtph_ps(half));
  }
#endif
  for (; i < count; ++i) destination[i] = to_float(source[i]);
}

inline void narrow(const float* source, Float16* destination, size_t count) {
  size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    const __m128i half =
        _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(destination + i), half);
  }
#endif
  for (; i < count; ++i) destination[i] = to_float16(source[i]);
}

}  // namespace
}  // namespace muster::detail
