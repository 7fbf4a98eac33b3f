#include "muster/train/precision.h"

#include <dlfcn.h>

#include <chrono>
#include <limits>

#include <ATen/autocast_mode.h>
#include <torch/types.h>

#include "muster/base/cpu.h"
#include "muster/base/error.h"
#include "muster/base/log.h"

namespace muster::detail {
namespace {

// Before its first primitive, oneDNN can be told which instructions to keep to.
void keep_from_tiles() {
  const CpuFeatures cpu = CpuFeatures::detect();
  if (!cpu.amx || cpu.amx_described) return;
  constexpr int kAvx512Bf16 = 0x60 | 0x4f;  // dnnl_cpu_isa_avx512_core_bf16, since 1.6
  using SetIsa = int (*)(int);
  const auto set_isa = reinterpret_cast<SetIsa>(dlsym(RTLD_DEFAULT, "dnnl_set_max_cpu_isa"));
  if (set_isa != nullptr) set_isa(kAvx512Bf16);
}

double seconds_of_product(torch::ScalarType type) {
  const torch::NoGradGuard no_grad;
  const auto a = torch::ones({128, 512}).to(type);
  const auto b = torch::ones({512, 512}).to(type);
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 4; ++i) {
    const auto start = std::chrono::steady_clock::now();
    torch::mm(a, b);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

Precision::Precision(const std::string& name, bool warn) : reduced_(name != "fp32"), half_(name == "fp16") {
  if (!reduced_) return;
  if (half_) {
    constexpr double kFirstScale = 65536;
    loss_scale_ = kFirstScale;
    try {
      seconds_of_product(torch::kFloat16);
    } catch (const c10::Error&) {
      raise<InvalidArgument>(
          "--precision fp16: this libtorch has no fp16 matrix product for the CPU; use --precision bf16");
    }
    return;
  }
  keep_from_tiles();
  if (!warn) return;
  const double full = seconds_of_product(torch::kFloat32);
  const double reduced = seconds_of_product(torch::kBFloat16);
  if (reduced > full)
    log_warning(
        "--precision bf16 is slower than fp32 on this machine: a matrix product takes {:.1f} times as long",
        reduced / full);
}

Precision::Scope::Scope(const Precision& precision) : active_(precision.reduced_) {
  if (!active_) return;
  before_ = at::autocast::is_cpu_enabled();
  at::autocast::set_autocast_cpu_dtype(precision.half_ ? torch::kFloat16 : torch::kBFloat16);
  at::autocast::set_cpu_enabled(true);
}

Precision::Scope::~Scope() {
  if (!active_) return;
  at::autocast::clear_cache();
  at::autocast::set_cpu_enabled(before_);
}

}  // namespace muster::detail
