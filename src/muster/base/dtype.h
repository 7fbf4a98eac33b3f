#pragma once

// The element types that cross a link or an arena, and the two 16-bit floats, which C++20 does not have.
// Conversions round to nearest, ties to even, and keep infinities, NaNs and subnormals.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace muster {

enum class DType : uint8_t { kFloat32, kFloat64, kFloat16, kBFloat16, kInt8, kInt32, kInt64 };

size_t size_of(DType dtype);
const char* name_of(DType dtype);  // "float32", "bfloat16", ...

/// The inverse of name_of; also takes fp32, fp64, fp16 and bf16. Throws InvalidArgument.
DType parse_dtype(std::string_view name);

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

}  // namespace muster
