#include "muster/base/convert.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

constexpr size_t kAllHalves = 65536;

std::vector<const ConvertKernels*> sets() {
  std::vector<const ConvertKernels*> sets;
  for (const auto set : {KernelSet::kPortable, KernelSet::kAvx2, KernelSet::kAvx512}) {
    if (const auto* kernels = convert_kernels_of(set)) sets.push_back(kernels);
  }
  return sets;
}

uint32_t bits_of(float value) {
  return std::bit_cast<uint32_t>(value);
}

template <typename Half>
std::vector<Half> all_halves() {
  std::vector<Half> halves(kAllHalves);
  for (size_t i = 0; i < kAllHalves; ++i) halves[i].bits = static_cast<uint16_t>(i);
  return halves;
}

// From the definition of a format with `mantissa` bits after the point, by arithmetic in double.
float value_of(uint32_t bits, int mantissa) {
  const int exponent_bits = 15 - mantissa;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto exponent = static_cast<int>((bits >> mantissa) & ((1U << exponent_bits) - 1));
  const auto fraction = std::ldexp(static_cast<double>(bits & ((1U << mantissa) - 1)), -mantissa);
  double magnitude = std::ldexp(exponent == 0 ? fraction : 1 + fraction, std::max(exponent, 1) - bias);
  if (exponent == (1 << exponent_bits) - 1)
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
  return static_cast<float>((bits & 0x8000U) != 0 ? -magnitude : magnitude);
}

// Every half, the floats just beside it, the middle between it and the next, and the floats beside that.
template <typename Half>
std::vector<float> floats_around_halves() {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < kAllHalves; ++bits) {
    const uint32_t low = bits_of(to_float(Half{static_cast<uint16_t>(bits)}));
    const uint32_t high = bits_of(to_float(Half{static_cast<uint16_t>(bits + 1)}));
    const uint32_t middle = low + (high - low) / 2;
    for (const uint32_t one : {low - 1, low, low + 1, middle - 1, middle, middle + 1})
      values.push_back(std::bit_cast<float>(one));
  }
  return values;
}

std::vector<float> special_floats() {
  using Limits = std::numeric_limits<float>;
  std::vector<float> values = {0.0F,
                               Limits::infinity(),
                               Limits::max(),
                               Limits::min(),
                               Limits::denorm_min(),
                               65504.0F,  // the largest float16
                               65519.996F,
                               65520.0F,  // the least that is infinite in float16
                               0x1p-14F,  // the least normal float16
                               0x1p-24F,  // the least float16
                               0x1p-25F,
                               0x1.000002p-25F,
                               Limits::quiet_NaN(),
                               std::bit_cast<float>(0x7f800001U),  // signalling NaNs
                               std::bit_cast<float>(0x7fbfffffU),
                               std::bit_cast<float>(0x7fffffffU)};
  const size_t count = values.size();
  for (size_t i = 0; i < count; ++i) values.push_back(std::bit_cast<float>(bits_of(values[i]) | 0x80000000U));
  return values;
}

template <typename Half>
void expect_all_widened(void (*widen)(const Half*, float*, size_t), int mantissa, const char* set) {
  const auto halves = all_halves<Half>();
  std::vector<float> wide(kAllHalves);
  widen(halves.data(), wide.data(), kAllHalves);
  for (uint32_t i = 0; i < kAllHalves; ++i) {
    const float expected = value_of(i, mantissa);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide[i])) << set << " of " << i;
    } else {
      ASSERT_EQ(bits_of(wide[i]), bits_of(expected)) << set << " of " << i;
    }
    ASSERT_EQ(bits_of(wide[i]), bits_of(to_float(halves[i]))) << set << " of " << i;
  }
}

TEST(Convert, EverySetWidensEveryHalf) {
  for (const auto* kernels : sets()) {
    expect_all_widened(kernels->widen_float16, 10, kernels->name);
    expect_all_widened(kernels->widen_bfloat16, 7, kernels->name);
  }
}

template <typename Half>
void expect_narrowed(void (*narrow)(const float*, Half*, size_t), Half (*one)(float), const char* set) {
  std::vector<float> values = floats_around_halves<Half>();
  for (const float value : special_floats()) values.push_back(value);
  std::vector<Half> halves(values.size());
  narrow(values.data(), halves.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(halves[i].bits, one(values[i]).bits)
        << set << " of " << values[i] << ", " << bits_of(values[i]);
}

// The conversions of one value are held against arithmetic in double in dtype_test.cc.
TEST(Convert, EverySetNarrowsAsTheConversionOfOneValue) {
  for (const auto* kernels : sets()) {
    expect_narrowed(kernels->narrow_float16, to_float16, kernels->name);
    expect_narrowed(kernels->narrow_bfloat16, to_bfloat16, kernels->name);
  }
}

template <typename Half>
void expect_only_count_written(void (*widen)(const Half*, float*, size_t),
                               void (*narrow)(const float*, Half*, size_t), size_t count) {
  constexpr uint16_t kUntouched = 0x1234;
  const std::vector<float> values(count, 1.5F);
  std::vector<Half> halves(count + 1, Half{kUntouched});
  narrow(values.data(), halves.data(), count);
  EXPECT_EQ(halves[count].bits, kUntouched);
  std::vector<float> back(count + 1, 42.0F);
  widen(halves.data(), back.data(), count);
  EXPECT_EQ(back[count], 42.0F);
  back.pop_back();
  EXPECT_EQ(back, values);
}

TEST(Convert, AnyCountIsConvertedAndNoMore) {
  for (const auto* kernels : sets()) {
    for (size_t count = 0; count <= 70; ++count) {
      SCOPED_TRACE(::testing::Message() << kernels->name << ", " << count << " elements");
      expect_only_count_written(kernels->widen_float16, kernels->narrow_float16, count);
      expect_only_count_written(kernels->widen_bfloat16, kernels->narrow_bfloat16, count);
    }
  }
}

TEST(Convert, TakesTheLoopOfItsTypes) {
  const std::vector<float> values = {1.0F, -2.5F, 3.140625F, 65520.0F};
  for (const auto half : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<uint16_t> small(values.size());
    std::vector<float> back(values.size());
    convert(DType::kFloat32, values.data(), half, small.data(), values.size());
    convert(half, small.data(), DType::kFloat32, back.data(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const bool is_float16 = half == DType::kFloat16;
      EXPECT_EQ(small[i], is_float16 ? to_float16(values[i]).bits : to_bfloat16(values[i]).bits);
      EXPECT_EQ(back[i], is_float16 ? to_float(Float16{small[i]}) : to_float(BFloat16{small[i]}));
    }
  }
}

TEST(Convert, ATypeToItselfIsACopy) {
  const std::vector<float> values = {1.0F, -0.0F, 1e-40F};
  std::vector<float> floats(values.size());
  convert(DType::kFloat32, values.data(), DType::kFloat32, floats.data(), values.size());
  EXPECT_EQ(memcmp(floats.data(), values.data(), values.size() * sizeof(float)), 0);
  const std::vector<int64_t> integers = {1, -2, int64_t{1} << 60};
  std::vector<int64_t> copies(integers.size());
  convert(DType::kInt64, integers.data(), DType::kInt64, copies.data(), integers.size());
  EXPECT_EQ(copies, integers);
}

TEST(Convert, OtherPairsAreRefused) {
  std::array<double, 4> memory{};
  std::array<double, 4> other{};
  for (const auto& [from, to] : {std::pair{DType::kFloat16, DType::kBFloat16},
                                 {DType::kFloat64, DType::kFloat16},
                                 {DType::kFloat32, DType::kFloat64},
                                 {DType::kBFloat16, DType::kInt32}}) {
    EXPECT_THROW(convert(from, memory.data(), to, other.data(), memory.size()), InvalidArgument)
        << name_of(from) << " to " << name_of(to);
  }
}

}  // namespace
}  // namespace muster::detail
