#include "muster/optim/update_kernels.h"

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace muster::detail {
namespace {

// Five arrays and the numbers that a kernel returned: all that it can change.
struct Memory {
  std::vector<std::vector<std::byte>> arrays;
  std::vector<double> results;

  bool operator==(const Memory&) const = default;
};

Memory fill(DType dtype, size_t count) {
  std::mt19937_64 generator(7);
  std::normal_distribution<double> normal;
  Memory memory;
  for (int i = 0; i < 5; ++i) {
    std::vector<std::byte> bytes(count * 8);
    for (size_t k = 0; k < count; ++k) {
      const double value = i < 3 ? normal(generator) : std::abs(normal(generator));
      const auto single = static_cast<float>(value);
      const auto half = to_float16(single);
      const auto brain = to_bfloat16(single);
      const void* source = dtype == DType::kFloat64   ? static_cast<const void*>(&value)
                           : dtype == DType::kFloat32 ? static_cast<const void*>(&single)
                           : dtype == DType::kFloat16 ? static_cast<const void*>(&half)
                                                      : static_cast<const void*>(&brain);
      memcpy(bytes.data() + k * size_of(dtype), source, size_of(dtype));
    }
    memory.arrays.push_back(std::move(bytes));
  }
  return memory;
}

UpdateRange range_of(DType dtype, Memory& memory, size_t count) {
  auto& arrays = memory.arrays;
  return {.dtype = dtype,
          .parameter = arrays[0].data(),
          .gradient = arrays[1].data(),
          .states = {arrays[2].data(), arrays[3].data(), arrays[4].data()},
          .count = count};
}

void run_rules(const UpdateKernels& kernels, const UpdateRange& range, double decay, bool flag,
               Memory& memory) {
  using Form = SgdStep::Form;
  for (const Form form : {Form::kPlain, Form::kMomentum, Form::kNesterov}) {
    kernels.sgd(range, {.form = form,
                        .gradient_scale = 0.3,
                        .weight_decay = decay,
                        .momentum = 0.9,
                        .gain = 0.7,
                        .ahead = 1.1,
                        .lr = 0.01});
  }
  kernels.adagrad(range,
                  {.gradient_scale = 0.3, .weight_decay = decay, .start = 9, .lr = 0.01, .eps = 1e-10});
  memory.results.push_back(kernels.sum_of_squares(range.dtype, range.parameter, range.count));
  // Each of these wants its own states to be positive: the second moments.
  UpdateRange other = range;
  std::swap(other.states[0], other.states[1]);
  kernels.rmsprop(other, {.centered = flag,
                          .gradient_scale = 0.3,
                          .weight_decay = decay,
                          .alpha = 0.99,
                          .momentum = flag ? 0.9 : 0,
                          .lr = 0.01,
                          .eps = 1e-8});
  kernels.adam(range, {.amsgrad = flag,
                       .gradient_scale = 0.3,
                       .weight_decay = decay,
                       .shrink = 0.999,
                       .beta1 = 0.9,
                       .beta2 = 0.999,
                       .rate = 0.01,
                       .root = 1.3,
                       .eps = 1e-8});
  const LambStep lamb = {.advance = flag,
                         .gradient_scale = 0.3,
                         .beta1 = 0.9,
                         .beta2 = 0.999,
                         .correction = 1.2,
                         .root = 1.3,
                         .eps = 1e-6,
                         .weight_decay = decay,
                         .rate = 0.01};
  const Norms norms = kernels.measure_lamb(range, lamb);
  memory.results.push_back(norms.parameter);
  memory.results.push_back(norms.update);
  kernels.apply_lamb(range, lamb);
}

constexpr std::array kSizes = {0, 1, 7, 16, 17, 100, 1024, 3001};

std::vector<const UpdateKernels*> vector_sets() {
  std::vector<const UpdateKernels*> sets;
  for (const auto set : {KernelSet::kAvx2, KernelSet::kAvx512}) {
    if (const auto* found = update_kernels_of(set)) sets.push_back(found);
  }
  return sets;
}

TEST(UpdateKernels, EveryRuleGivesTheSameBitsInEverySet) {
  for (const auto* kernels : vector_sets()) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      for (const size_t count : kSizes) {
        for (const double decay : {0.0, 0.1}) {
          for (const bool flag : {false, true}) {
            Memory expected = fill(dtype, count);
            Memory memory = expected;
            run_rules(*update_kernels_of(KernelSet::kPortable), range_of(dtype, expected, count), decay, flag,
                      expected);
            run_rules(*kernels, range_of(dtype, memory, count), decay, flag, memory);
            EXPECT_EQ(memory, expected)
                << fmt::format("{}, {} elements of {}", kernels->name, count, name_of(dtype));
          }
        }
      }
    }
  }
}

TEST(UpdateKernels, SumsGiveTheSameBitsInEverySet) {
  for (const auto* kernels : vector_sets()) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
      for (const size_t count : kSizes) {
        for (size_t sources = 1; sources <= 9; ++sources) {
          const Memory memory = fill(dtype, count);
          std::vector<WeightedSource> weighted;
          for (size_t i = 0; i < sources; ++i) {
            weighted.push_back(
                {.data = memory.arrays[i % 5].data(), .weight = 0.3 * static_cast<double>(i + 1)});
          }
          std::vector<std::byte> expected(count * sizeof(double)), sum(count * sizeof(double));
          update_kernels_of(KernelSet::kPortable)->add_up(dtype, weighted, expected.data(), count);
          kernels->add_up(dtype, weighted, sum.data(), count);
          EXPECT_EQ(sum, expected) << fmt::format("{}, {} sources of {} elements of {}", kernels->name,
                                                  sources, count, name_of(dtype));
        }
      }
    }
  }
}

TEST(UpdateKernels, TheBestSetIsOneOfThem) {
  EXPECT_NE(update_kernels_of(KernelSet::kPortable), nullptr);
  const auto sets = vector_sets();
  EXPECT_EQ(&update_kernels(), sets.empty() ? update_kernels_of(KernelSet::kPortable) : sets.back());
}

}  // namespace
}  // namespace muster::detail
