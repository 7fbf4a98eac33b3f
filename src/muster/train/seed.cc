#include "muster/seed.h"

#include <ATen/Context.h>

namespace muster {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): neighbouring numbers give unlike ones.
uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

void seed(const Job& job, uint64_t seed) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  const auto rank = static_cast<uint64_t>(job.rank());
  at::manual_seed(rank == 0 ? seed : mixed(seed + rank * kGolden));
}

}  // namespace muster
