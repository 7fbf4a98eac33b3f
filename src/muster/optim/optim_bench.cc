// What an update of 20 million floats costs: `muster_optim_bench`. The bytes are those that a rule must read
// and write; memcpy shows what the memory gives.

#include <cstring>
#include <vector>

#include <benchmark/benchmark.h>

#include "muster/optim/gradients.h"
#include "muster/optim/rules.h"

namespace muster::detail {
namespace {

constexpr size_t kCount = 20'000'000;

void bytes_per_element(benchmark::State& state, size_t bytes) {
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes * kCount));
}

void copy(benchmark::State& state) {
  const std::vector<float> source(kCount, 1);
  std::vector<float> destination(kCount);
  for (auto _ : state) {
    memcpy(destination.data(), source.data(), kCount * sizeof(float));
    benchmark::ClobberMemory();
  }
  bytes_per_element(state, 2 * sizeof(float));
}
BENCHMARK(copy)->Unit(benchmark::kMillisecond);

void update(benchmark::State& state, const UpdateRulePtr& rule) {
  std::vector<float> parameter(kCount, 1);
  const std::vector<float> gradient(kCount, 1e-3F);
  std::vector<std::vector<float>> states(rule->states(), std::vector<float>(kCount));
  UpdateRange range = {.parameter = parameter.data(), .gradient = gradient.data(), .count = kCount};
  for (size_t i = 0; i < states.size(); ++i) range.states[i] = states[i].data();
  UpdateNow now = {.step = 0, .lr = 1e-6};
  for (auto _ : state) {
    ++now.step;
    rule->apply(range, now);
    benchmark::ClobberMemory();
  }
  bytes_per_element(state, (3 + 2 * states.size()) * sizeof(float));
}
BENCHMARK_CAPTURE(update, sgd, sgd())->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(update, sgd_momentum, sgd({.momentum = 0.9}))->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(update, adam, adam())->Unit(benchmark::kMillisecond);

void add_gradients(benchmark::State& state) {
  const auto count = static_cast<size_t>(state.range(0));
  const std::vector<std::vector<float>> gradients(count, std::vector<float>(kCount, 1));
  std::vector<WeightedSource> sources;
  for (const auto& gradient : gradients) sources.push_back({.data = gradient.data(), .weight = 0.5});
  std::vector<float> sum(kCount);
  for (auto _ : state) {
    add_up(DType::kFloat32, sources, sum.data(), kCount);
    benchmark::ClobberMemory();
  }
  bytes_per_element(state, (count + 1) * sizeof(float));
}
BENCHMARK(add_gradients)->Arg(1)->Arg(2)->Arg(4)->Arg(8)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace muster::detail
