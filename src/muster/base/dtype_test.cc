#include "muster/base/dtype.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

// Rounds to a format with `mantissa` bits after the point by arithmetic in double: no bit tricks to share a
// mistake with.
double round_to_format(double value, int mantissa, int smallest_exponent, double overflow) {
  if (std::isnan(value) || std::isinf(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), smallest_exponent);
  const double quantum = std::ldexp(1.0, exponent - mantissa);
  const double rounded = std::nearbyint(value / quantum) * quantum;
  return std::abs(rounded) >= overflow ? std::copysign(std::numeric_limits<double>::infinity(), value)
                                       : rounded;
}

float random_float(std::mt19937& generator) {
  return std::bit_cast<float>(static_cast<uint32_t>(generator()));
}

void expect_same(double expected, float actual, float source) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(actual));
  } else {
    EXPECT_EQ(static_cast<float>(expected), actual) << "from " << source;
    EXPECT_EQ(std::signbit(expected), std::signbit(actual)) << "from " << source;
  }
}

TEST(Float16, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = to_float(Float16{static_cast<uint16_t>(bits)});
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_float16(value)))) << bits;
    } else {
      EXPECT_EQ(to_float16(value).bits, bits);
    }
  }
}

TEST(BFloat16, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = to_float(BFloat16{static_cast<uint16_t>(bits)});
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_bfloat16(value)))) << bits;
    } else {
      EXPECT_EQ(to_bfloat16(value).bits, bits);
    }
  }
}

TEST(Float16, RoundsToNearestTiesToEven) {
  std::mt19937 generator(1);
  for (int i = 0; i < 300000; ++i) {
    // Half of the samples are scaled into float16's own range, where rounding matters.
    float value = random_float(generator);
    if (i % 2 == 0) value = std::ldexp(std::fmod(value, 1.0F), static_cast<int>(generator() % 44) - 27);
    expect_same(round_to_format(value, 10, -14, 65536.0), to_float(to_float16(value)), value);
  }
}

TEST(Float16, HalfwayCasesGoToEven) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const double low = to_float(Float16{static_cast<uint16_t>(bits)});
    const double high = to_float(Float16{static_cast<uint16_t>(bits + 1)});
    const auto middle = static_cast<float>((low + high) / 2);
    EXPECT_EQ(to_float16(middle).bits, bits % 2 == 0 ? bits : bits + 1);
  }
  EXPECT_EQ(to_float(to_float16(65519.996F)), 65504.0F);
  EXPECT_TRUE(std::isinf(to_float(to_float16(65520.0F))));
}

TEST(BFloat16, RoundsToNearestTiesToEven) {
  std::mt19937 generator(2);
  const double overflow = std::ldexp(1.0, 128);
  for (int i = 0; i < 300000; ++i) {
    const float value = random_float(generator);
    expect_same(round_to_format(value, 7, -126, overflow), to_float(to_bfloat16(value)), value);
  }
}

TEST(DType, NamesAndSizes) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kInt8,
                      DType::kInt32, DType::kInt64}) {
    EXPECT_EQ(parse_dtype(name_of(dtype)), dtype);
  }
  EXPECT_EQ(parse_dtype("bf16"), DType::kBFloat16);
  EXPECT_EQ(size_of(DType::kBFloat16), 2u);
  EXPECT_EQ(size_of(DType::kInt64), 8u);
  EXPECT_THROW(parse_dtype("float23"), InvalidArgument);
  EXPECT_THROW(parse_dtype(""), InvalidArgument);
}

}  // namespace
}  // namespace muster::detail
