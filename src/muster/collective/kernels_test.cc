#include "muster/collective/kernels.h"

#include <cmath>
#include <cstring>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace muster::detail {
namespace {

constexpr std::array kDTypes = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
                                DType::kInt8,    DType::kInt32,   DType::kInt64};
constexpr std::array kOps = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};
constexpr std::array kSets = {KernelSet::kPortable, KernelSet::kAvx2, KernelSet::kAvx512};

double get(DType dtype, const std::byte* data, size_t i) {
  const auto as = [&]<typename T>(T value) {
    memcpy(&value, data + i * sizeof(T), sizeof(T));
    return value;
  };
  switch (dtype) {
    case DType::kFloat32:
      return as(float{});
    case DType::kFloat64:
      return as(double{});
    case DType::kFloat16:
      return to_float(as(Float16{}));
    case DType::kBFloat16:
      return to_float(as(BFloat16{}));
    case DType::kInt8:
      return as(int8_t{});
    case DType::kInt32:
      return as(int32_t{});
    default:
      return static_cast<double>(as(int64_t{}));
  }
}

void set(DType dtype, std::byte* data, size_t i, double value) {
  const auto as = [&]<typename T>(T converted) { memcpy(data + i * sizeof(T), &converted, sizeof(T)); };
  switch (dtype) {
    case DType::kFloat32:
      return as(static_cast<float>(value));
    case DType::kFloat64:
      return as(value);
    case DType::kFloat16:
      return as(to_float16(static_cast<float>(value)));
    case DType::kBFloat16:
      return as(to_bfloat16(static_cast<float>(value)));
    case DType::kInt8:
      return as(static_cast<int8_t>(value));
    case DType::kInt32:
      return as(static_cast<int32_t>(value));
    default:
      return as(static_cast<int64_t>(value));
  }
}

double expected(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProduct:
      return a * b;
    default:
      return a + b;
  }
}

TEST(Kernels, EveryTypeOperationAndSetGivesTheResult) {
  for (const auto kernel_set : kSets) {
    const Kernels* kernels = kernels_of(kernel_set);
    if (kernels == nullptr) continue;  // not this machine's
    for (const auto dtype : kDTypes) {
      for (const auto op : kOps) {
        for (const size_t sources : {1, 2, 3, 5}) {
          for (const size_t destinations : {1, 2, 3}) {
            for (const size_t count : {0, 1, 7, 1023, 1024, 2500}) {
              SCOPED_TRACE(fmt::format("{} {} {} sources {} destinations {} elements {}", kernels->name,
                                       name_of(dtype), name_of(op), sources, destinations, count));
              std::vector<std::vector<std::byte>> in(sources);
              std::vector<std::vector<std::byte>> out(destinations);
              std::vector<const void*> from;
              std::vector<void*> to;
              for (size_t s = 0; s < sources; ++s) {
                in[s].resize(count * size_of(dtype));
                for (size_t i = 0; i < count; ++i)
                  set(dtype, in[s].data(), i,
                      static_cast<double>((i * 7 + s * 3) % 5) - (op == ReduceOp::kProduct ? 2.0 : 1.0));
                from.push_back(in[s].data());
              }
              for (auto& destination : out) {
                destination.resize(count * size_of(dtype) + 1, std::byte{42});
                to.push_back(destination.data());
              }
              const int divisor = op == ReduceOp::kAverage ? 2 : 1;
              kernels->reduce({.dtype = dtype, .op = op, .divisor = divisor}, from, to, count);
              for (const auto& destination : out) {
                EXPECT_EQ(destination.back(), std::byte{42}) << "wrote too far";
                for (size_t i = 0; i < count; ++i) {
                  double value = get(dtype, in[0].data(), i);
                  for (size_t s = 1; s < sources; ++s)
                    value = expected(op, value, get(dtype, in[s].data(), i));
                  value /= divisor;
                  if (dtype == DType::kInt8 || dtype == DType::kInt32 || dtype == DType::kInt64)
                    value = std::trunc(value);
                  ASSERT_EQ(get(dtype, destination.data(), i), value) << "element " << i;
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(Kernels, WhatIsNotANumberStaysSoWhicheverSourceHasIt) {
  constexpr size_t kCount = 37;
  for (const auto kernel_set : kSets) {
    const Kernels* kernels = kernels_of(kernel_set);
    if (kernels == nullptr) continue;
    for (const auto dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
      for (const auto op : {ReduceOp::kMin, ReduceOp::kMax}) {
        for (size_t with_nan = 0; with_nan < 3; ++with_nan) {
          std::vector<std::vector<std::byte>> data(3, std::vector<std::byte>(kCount * size_of(dtype)));
          for (size_t source = 0; source < data.size(); ++source) {
            for (size_t i = 0; i < kCount; ++i)
              set(dtype, data[source].data(), i,
                  source == with_nan && i % 2 == 0 ? NAN : 1.0 + static_cast<double>(source));
          }
          const std::array<const void*, 3> sources = {data[0].data(), data[1].data(), data[2].data()};
          void* to = data[0].data();
          kernels->reduce({.dtype = dtype, .op = op, .divisor = 1}, sources, {&to, 1}, kCount);
          for (size_t i = 0; i < kCount; ++i)
            EXPECT_EQ(std::isnan(get(dtype, data[0].data(), i)), i % 2 == 0) << i;
        }
      }
    }
  }
}

TEST(Kernels, AllSetsGiveTheSameBits) {
  constexpr size_t kCount = 3001;
  std::vector<float> a(kCount);
  std::vector<float> b(kCount);
  std::vector<float> c(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    a[i] = std::sin(static_cast<float>(i)) * 1e3F;
    b[i] = std::cos(static_cast<float>(i * i)) * 1e-3F;
    c[i] = 1.0F / static_cast<float>(i + 1);
  }
  const std::array<const void*, 3> sources = {a.data(), b.data(), c.data()};
  const Reduction average = {.dtype = DType::kFloat32, .op = ReduceOp::kAverage, .divisor = 3};
  std::vector<float> reference(kCount);
  void* to = reference.data();
  kernels_of(KernelSet::kPortable)->reduce(average, sources, {&to, 1}, kCount);
  for (const auto kernel_set : kSets) {
    const Kernels* kernels = kernels_of(kernel_set);
    if (kernels == nullptr) continue;
    std::vector<float> result(kCount);
    to = result.data();
    kernels->reduce(average, sources, {&to, 1}, kCount);
    EXPECT_EQ(memcmp(result.data(), reference.data(), kCount * sizeof(float)), 0) << kernels->name;
  }
}

TEST(Kernels, ADestinationMayBeASource) {
  for (const size_t sources : {2, 4}) {
    std::vector<std::vector<float>> data(sources, std::vector<float>(5000, 1.0F));
    std::vector<const void*> from;
    std::vector<void*> to;
    for (auto& one : data) {
      from.push_back(one.data());
      to.push_back(one.data());
    }
    kernels().reduce({.dtype = DType::kFloat32}, from, to, 5000);
    for (const auto& one : data) {
      for (const float value : one) ASSERT_EQ(value, static_cast<float>(sources));
    }
  }
}

TEST(Kernels, HalfPrecisionIsRoundedOnceNotInEveryAddition) {
  // 2048 + 1 is 2048 in fp16, whichever way it is repeated; in fp32 the ones add up first.
  const std::vector<float> values = {2048, 1, 1, 1, 1};
  std::vector<Float16> halves;
  std::vector<const void*> sources;
  for (const float value : values) halves.push_back(to_float16(value));
  for (const auto& half : halves) sources.push_back(&half);
  Float16 result;
  void* to = &result;
  for (const auto kernel_set : kSets) {
    const Kernels* kernels = kernels_of(kernel_set);
    if (kernels == nullptr) continue;
    kernels->reduce({.dtype = DType::kFloat16}, sources, {&to, 1}, 1);
    EXPECT_EQ(to_float(result), 2052.0F);
  }
}

}  // namespace
}  // namespace muster::detail
