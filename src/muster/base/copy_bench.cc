// What a copy costs beside std::memcpy: `muster_base_bench --benchmark_filter=copy`. The second number is the
// bytes by which the destination lies behind the source modulo a page: 0 and 16 are those of two blocks of an
// arena, and of a large malloc beside one. The memory has been written before, and is not the page of zeros
// that the system gives at first.

#include <sys/mman.h>

#include <cstring>

#include <benchmark/benchmark.h>

#include "muster/base/copy.h"

namespace muster::detail {
namespace {

class Pages {
 public:
  explicit Pages(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    std::memset(data_, 1, bytes_);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  char* data() const { return static_cast<char*>(data_); }

 private:
  const size_t bytes_;
  void* const data_;
};

template <typename Copy>
void measure(benchmark::State& state, const Copy& copy) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const Pages source(bytes + 4096);
  const Pages destination(bytes + 4096);
  for (auto _ : state) {
    copy(destination.data() + state.range(1), source.data(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void copy_by_memcpy(benchmark::State& state) {
  measure(state, [](void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); });
}

void copy_by_bytes(benchmark::State& state) {
  measure(state, copy_bytes);
}

void copy_by_stream(benchmark::State& state) {
  measure(state, stream_bytes);
}

void sizes_and_offsets(benchmark::internal::Benchmark* benchmark) {
  for (const int64_t bytes : {512, 4 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20}) {
    for (const int64_t offset : {0, 1, 16, 64, 2048}) benchmark->Args({bytes, offset});
  }
}
BENCHMARK(copy_by_memcpy)->Apply(sizes_and_offsets);
BENCHMARK(copy_by_bytes)->Apply(sizes_and_offsets);
BENCHMARK(copy_by_stream)->Apply(sizes_and_offsets);

}  // namespace
}  // namespace muster::detail
