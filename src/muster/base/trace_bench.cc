// What a trace event costs: `muster_base_bench`. The span is measured beside an empty loop and beside the two
// clock readings that it can't do without when it is on.

#include <benchmark/benchmark.h>

#include "muster/base/trace.h"

namespace muster::detail {
namespace {

void nothing(benchmark::State& state) {
  for (auto _ : state) benchmark::ClobberMemory();
}
BENCHMARK(nothing);

void span_when_off(benchmark::State& state) {
  for (auto _ : state) {
    TraceSpan span("span");
    benchmark::ClobberMemory();
  }
}
BENCHMARK(span_when_off);

void two_clock_readings(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(trace_internal::now_ns());
    benchmark::DoNotOptimize(trace_internal::now_ns());
  }
}
BENCHMARK(two_clock_readings);

void span_when_on(benchmark::State& state) {
  TraceRecorder recorder("worker/0");
  TraceThread thread(recorder, "main");
  int64_t undrained = 0;
  for (auto _ : state) {
    { TraceSpan span("span"); }
    if (++undrained == 100'000) {
      state.PauseTiming();
      recorder.drain();
      undrained = 0;
      state.ResumeTiming();
    }
  }
}
BENCHMARK(span_when_on);

}  // namespace
}  // namespace muster::detail
