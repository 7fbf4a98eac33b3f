#include "muster/optim/gradients.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

std::vector<std::vector<float>> random_gradients(size_t sources, size_t count) {
  std::mt19937_64 generator(3);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> gradients(sources, std::vector<float>(count));
  for (auto& gradient : gradients) {
    for (float& value : gradient) value = normal(generator);
  }
  return gradients;
}

std::vector<WeightedSource> weighted(const std::vector<std::vector<float>>& gradients, double weight = 1) {
  std::vector<WeightedSource> sources;
  for (const auto& gradient : gradients) sources.push_back({.data = gradient.data(), .weight = weight});
  return sources;
}

constexpr size_t kGradientCount = 2077;

TEST(AddUp, WithWeightsOfOneItIsThePlainSumBitForBit) {
  for (size_t sources = 1; sources <= 13; ++sources) {
    const auto gradients = random_gradients(sources, kGradientCount);
    std::vector<float> expected = gradients[0];
    for (size_t k = 1; k < sources; ++k) {
      for (size_t i = 0; i < kGradientCount; ++i) expected[i] += gradients[k][i];
    }
    std::vector<float> sum(kGradientCount, -1);
    add_up(DType::kFloat32, weighted(gradients), sum.data(), kGradientCount);
    EXPECT_EQ(sum, expected) << sources << " sources";
  }
}

TEST(AddUp, EverySourceCountsByItsWeight) {
  for (size_t sources = 1; sources <= 9; ++sources) {
    std::vector<std::vector<double>> gradients(sources, std::vector<double>(kGradientCount));
    std::vector<WeightedSource> list;
    std::vector<double> expected(kGradientCount);
    for (size_t k = 0; k < sources; ++k) {
      const double weight = 0.5 + static_cast<double>(k);
      for (size_t i = 0; i < kGradientCount; ++i) {
        gradients[k][i] = static_cast<double>(i * (k + 1) % 17);
        expected[i] += weight * gradients[k][i];
      }
      list.push_back({.data = gradients[k].data(), .weight = weight});
    }
    std::vector<double> sum(kGradientCount, -1);
    add_up(DType::kFloat64, list, sum.data(), kGradientCount);
    EXPECT_EQ(sum, expected) << sources << " sources";  // exact: small multiples of a half
  }
}

TEST(AddUp, TheSumMayBeAnyOfTheSources) {
  for (const size_t sources : {1, 2, 4, 5, 9}) {
    for (size_t target = 0; target < sources; ++target) {
      auto gradients = random_gradients(sources, kGradientCount);
      std::vector<float> expected(kGradientCount);
      add_up(DType::kFloat32, weighted(gradients, 0.3), expected.data(), kGradientCount);
      add_up(DType::kFloat32, weighted(gradients, 0.3), gradients[target].data(), kGradientCount);
      EXPECT_EQ(gradients[target], expected) << sources << " sources into number " << target;
    }
  }
}

template <typename Half>
void expect_halves_summed_in_float(DType dtype, Half (*convert)(float)) {
  for (const size_t sources : {1, 3, 6}) {
    const auto gradients = random_gradients(sources, kGradientCount);
    std::vector<std::vector<Half>> halves(sources, std::vector<Half>(kGradientCount));
    std::vector<WeightedSource> list;
    std::vector<float> expected(kGradientCount);
    for (size_t k = 0; k < sources; ++k) {
      for (size_t i = 0; i < kGradientCount; ++i) {
        halves[k][i] = convert(gradients[k][i]);
        const float product = 0.25F * to_float(halves[k][i]);
        expected[i] = k == 0 ? product : expected[i] + product;
      }
      list.push_back({.data = halves[k].data(), .weight = 0.25});
    }
    std::vector<float> sum(kGradientCount, -1);
    add_up(dtype, list, sum.data(), kGradientCount);
    EXPECT_EQ(sum, expected) << sources << " sources of " << name_of(dtype);
  }
}

TEST(AddUp, SixteenBitSourcesAreSummedInFloat32) {
  expect_halves_summed_in_float<Float16>(DType::kFloat16, to_float16);
  expect_halves_summed_in_float<BFloat16>(DType::kBFloat16, to_bfloat16);
}

TEST(AddUp, NoSourcesGiveZeros) {
  std::vector<float> sum(5, 3);
  add_up(DType::kBFloat16, {}, sum.data(), 4);
  EXPECT_EQ(sum, (std::vector<float>{0, 0, 0, 0, 3}));
}

TEST(AddUp, IntegersAreRefused) {
  int32_t sum = 0;
  EXPECT_THROW(add_up(DType::kInt32, {}, &sum, 1), InvalidArgument);
}

TEST(SumOfSquares, IsExactForSmallIntegers) {
  for (const size_t count : {0, 1, 15, 16, 17, 1000, 4097}) {
    std::vector<float> singles(count);
    std::vector<double> doubles(count);
    double expected = 0;
    for (size_t i = 0; i < count; ++i) {
      doubles[i] = static_cast<double>(i % 100) - 50;
      singles[i] = static_cast<float>(doubles[i]);
      expected += doubles[i] * doubles[i];
    }
    EXPECT_EQ(sum_of_squares(DType::kFloat32, singles.data(), count), expected) << count;
    EXPECT_EQ(sum_of_squares(DType::kFloat64, doubles.data(), count), expected) << count;
  }
}

TEST(SumOfSquares, LargeFloatsDoNotOverflow) {
  const std::vector<float> values(100, 3e38F);
  EXPECT_NEAR(sum_of_squares(DType::kFloat32, values.data(), values.size()) / 9e78, 1, 1e-6);
}

TEST(SumOfSquares, InfinityAndNanShowWhereverTheyAre) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (size_t at = 0; at < 37; ++at) {
      std::vector<float> values(37, 1);
      values[at] = bad;
      EXPECT_FALSE(std::isfinite(sum_of_squares(DType::kFloat32, values.data(), values.size())));
    }
  }
}

TEST(SumOfSquares, OtherTypesAreRefused) {
  EXPECT_THROW(sum_of_squares(DType::kFloat16, nullptr, 0), InvalidArgument);
}

template <typename T>
void expect_finds_each(DType dtype, const std::vector<T>& not_finite, const std::vector<T>& finite) {
  for (size_t count = 0; count < 70; ++count) {
    std::vector<T> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = finite[i % finite.size()];
    EXPECT_TRUE(all_finite(dtype, values.data(), count)) << count;
    for (size_t at = 0; at < count; ++at) {
      const T before = values[at];
      values[at] = not_finite[at % not_finite.size()];
      EXPECT_FALSE(all_finite(dtype, values.data(), count)) << at << " of " << count;
      values[at] = before;
    }
  }
}

TEST(AllFinite, FindsWhatIsInfiniteOrNotANumberAnywhereAndNothingElse) {
  using Single = std::numeric_limits<float>;
  using Double = std::numeric_limits<double>;
  expect_finds_each<float>(DType::kFloat32, {Single::infinity(), -Single::infinity(), Single::quiet_NaN()},
                           {0.0F, -0.0F, 1.5F, -Single::max(), Single::max(), Single::denorm_min()});
  expect_finds_each<double>(DType::kFloat64, {Double::infinity(), -Double::infinity(), Double::quiet_NaN()},
                            {0.0, -0.0, 1.5, -Double::max(), Double::max(), Double::denorm_min()});
  expect_finds_each<uint16_t>(DType::kFloat16, {0x7c00, 0xfc00, 0x7e00}, {0, 0x8000, 0x7bff, 0xfbff, 1});
  expect_finds_each<uint16_t>(DType::kBFloat16, {0x7f80, 0xff80, 0x7fc0}, {0, 0x8000, 0x7f7f, 0xff7f, 1});
  EXPECT_THROW(all_finite(DType::kInt32, nullptr, 0), InvalidArgument);
}

}  // namespace
}  // namespace muster::detail
