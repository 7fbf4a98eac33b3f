#include "muster/base/cpu.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace muster::detail {

#if defined(__x86_64__)
namespace {

struct Leaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// Zeros for a leaf that the processor does not have.
Leaf read_leaf(uint32_t number, uint32_t sub = 0) {
  Leaf leaf;
  __get_cpuid_count(number, sub, &leaf.eax, &leaf.ebx, &leaf.ecx, &leaf.edx);
  return leaf;
}

bool bit(uint32_t word, int index) {
  return ((word >> index) & 1U) != 0;
}

uint64_t enabled_states() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

// The field for the family has four bits; where they are all set, eight more are added.
int family_of(uint32_t signature) {
  const uint32_t family = (signature >> 8) & 0xfU;
  return static_cast<int>(family == 0xfU ? family + ((signature >> 20) & 0xffU) : family);
}

std::string brand_string() {
  std::array<char, 49> text{};
  for (size_t i = 0; i < 3; ++i) {
    const Leaf leaf = read_leaf(0x80000002U + static_cast<uint32_t>(i));
    std::memcpy(text.data() + i * sizeof(leaf), &leaf, sizeof(leaf));
  }
  std::string brand(text.data());
  brand.erase(0, brand.find_first_not_of(' '));
  return brand;
}

}  // namespace

CpuFeatures CpuFeatures::detect() {
  CpuFeatures features;
  features.brand = brand_string();
  features.amd = read_leaf(0).ebx == 0x68747541U;  // "Auth"enticAMD
  const Leaf basic = read_leaf(1);
  features.family = family_of(basic.eax);
  const Leaf extended = read_leaf(7);
  const Leaf extended1 = extended.eax >= 1 ? read_leaf(7, 1) : Leaf{};
  const uint64_t states = bit(basic.ecx, 27) ? enabled_states() : 0;
  const bool ymm = (states & 0x06U) == 0x06U;
  const bool zmm = (states & 0xe6U) == 0xe6U;
  features.avx2 = ymm && bit(extended.ebx, 5) && bit(basic.ecx, 12);
  features.avx512 = zmm && bit(extended.ebx, 16) && bit(extended.ebx, 17) && bit(extended.ebx, 28) &&
                    bit(extended.ebx, 30) && bit(extended.ebx, 31);
  features.avx512_vnni = features.avx512 && bit(extended.ecx, 11);
  features.avx512_bf16 = features.avx512 && bit(extended1.eax, 5);
  features.erms = bit(extended.ebx, 9);
  features.amx = bit(extended.edx, 24);
  features.amx_described = read_leaf(0x1d).eax >= 1 && read_leaf(0x1d, 1).eax != 0;
  return features;
}

bool can_run(KernelSet set) {
  switch (set) {
    case KernelSet::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case KernelSet::kAvx2:
      return __builtin_cpu_supports("avx2");  // with F16C, which came before it
    case KernelSet::kPortable:
      return true;
  }
  return false;
}
#else
CpuFeatures CpuFeatures::detect() {
  return {};
}

bool can_run(KernelSet set) {
  return set == KernelSet::kPortable;
}
#endif

int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int available_cores(const std::vector<int64_t>& processes) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const int64_t process : processes) {
    cpu_set_t set;
    if (sched_getaffinity(static_cast<pid_t>(process), sizeof(set), &set) == 0) CPU_OR(&all, &all, &set);
  }
  return std::max(available_cores(), CPU_COUNT(&all));
}

}  // namespace muster::detail
