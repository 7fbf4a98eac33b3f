#include "muster/base/dtype.h"

#include <array>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster {

using namespace detail;

namespace {

struct Row {
  DType dtype;
  const char* name;
  const char* alias;
};

constexpr std::array<Row, 7> kRows = {{{DType::kFloat32, "float32", "fp32"},
                                       {DType::kFloat64, "float64", "fp64"},
                                       {DType::kFloat16, "float16", "fp16"},
                                       {DType::kBFloat16, "bfloat16", "bf16"},
                                       {DType::kInt8, "int8", ""},
                                       {DType::kInt32, "int32", ""},
                                       {DType::kInt64, "int64", ""}}};

const Row& row_of(DType dtype) {
  for (const auto& row : kRows) {
    if (row.dtype == dtype) return row;
  }
  raise<InvalidArgument>("{} is not a dtype", static_cast<int>(dtype));
}

}  // namespace

const char* name_of(DType dtype) {
  return row_of(dtype).name;
}

DType parse_dtype(std::string_view name) {
  std::vector<std::string> known;
  for (const auto& row : kRows) {
    if (name == row.name || (!name.empty() && name == row.alias)) return row.dtype;
    known.emplace_back(row.name);
  }
  raise<InvalidArgument>("'{}' is not a dtype{}", name, suggestion(name, known));
}

namespace detail {

Float16 to_float16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return {static_cast<uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU))};
  if (magnitude >= 0x477ff000U)
    return {static_cast<uint16_t>(sign | 0x7c00U)};  // 65520 and more round to infinity
  if (magnitude < 0x38800000U) {
    // Below 2^-14 the result is subnormal. Adding 0.5 aligns its last bit with the last bit of a float's
    // mantissa, and the hardware's addition does the rounding.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5F)))};
  }
  const uint32_t rounding = 0xfffU + ((magnitude >> 13) & 1U);
  const uint32_t rebias = (127U - 15U) << 23;
  return {static_cast<uint16_t>(sign | ((magnitude - rebias + rounding) >> 13))};
}

float to_float(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000U) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fU;
  const uint32_t mantissa = value.bits & 0x3ffU;
  if (exponent == 0x1fU) {
    const uint32_t quiet = mantissa == 0 ? 0 : 0x400000U;  // what the hardware makes of a signalling NaN
    return std::bit_cast<float>(sign | 0x7f800000U | quiet | (mantissa << 13));
  }
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

}  // namespace detail
}  // namespace muster
