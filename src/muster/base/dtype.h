#pragma once

// The element types (muster/dtype.h) and the two 16-bit floats, which C++20 does not have. Conversions round
// to nearest, ties to even, and keep infinities, NaNs and subnormals.

#include <bit>
#include <cstdint>

#include "muster/dtype.h"

namespace muster::detail {

struct Float16 {
  uint16_t bits = 0;
};

struct BFloat16 {
  uint16_t bits = 0;
};

Float16 to_float16(float value);
float to_float(Float16 value);

inline BFloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U)
    return {static_cast<uint16_t>((bits >> 16) | 0x40U)};  // NaN stays NaN
  const uint32_t rounding = 0x7fffU + ((bits >> 16) & 1U);
  return {static_cast<uint16_t>((bits + rounding) >> 16)};
}

inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

}  // namespace muster::detail
