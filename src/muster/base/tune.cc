#include "muster/base/tune.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include <fmt/format.h>

#include "muster/base/text.h"

namespace muster::detail {
namespace {

std::string openblas_kernel(const CpuFeatures& cpu) {
  if (cpu.avx512) return "SKYLAKEX";
  if (cpu.avx2) return cpu.amd ? "ZEN" : "HASWELL";
  return "";
}

std::string safe_onednn_isa(const CpuFeatures& cpu) {
  if (!cpu.amx || cpu.amx_described) return "";
  if (cpu.avx512_bf16) return "AVX512_CORE_BF16";
  return cpu.avx512_vnni ? "AVX512_CORE_VNNI" : "AVX512_CORE";
}

// What GLIBC_TUNABLES should be; "" when it is as it should be.
std::string glibc_tunables(const CpuFeatures& cpu, const std::string& chosen) {
  constexpr std::string_view kThreshold = "glibc.cpu.x86_rep_movsb_threshold";
  if (!cpu.copies_slowly()) return "";
  for (const auto& entry : split(chosen, ':')) {
    if (entry.starts_with(fmt::format("{}=", kThreshold))) return "";
  }
  // More bytes than anybody copies at once.
  return fmt::format("{}{}{}=1000000000", chosen, chosen.empty() ? "" : ":", kThreshold);
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

int remember_blas(dl_phdr_info* info, size_t, void* result) {
  const std::string_view path(info->dlpi_name);
  const std::string_view file = path.substr(path.rfind('/') + 1);
  for (const char* name : {"libopenblas", "libmkl", "libblis", "libblas"}) {
    if (file.starts_with(name)) {
      // libblas.so.3 may be a thin front of one of the others: those win.
      auto& library = *static_cast<std::string*>(result);
      if (library.empty() || !file.starts_with("libblas")) library = path;
    }
  }
  return 0;
}

}  // namespace

std::vector<TuneVariable> tuning(const CpuFeatures& cpu, int cores, int tasks,
                                 const Environment& environment) {
  std::vector<TuneVariable> result;
  const auto choose = [&](const std::string& name, const std::string& value) {
    if (!value.empty() && !environment.get(name)) result.push_back({name, value});
  };
  choose("OPENBLAS_CORETYPE", openblas_kernel(cpu));
  choose("DNNL_MAX_CPU_ISA", safe_onednn_isa(cpu));
  choose("OMP_NUM_THREADS", std::to_string(std::max(1, cores / std::max(1, tasks))));
  const std::string tunables = glibc_tunables(cpu, environment.get("GLIBC_TUNABLES").value_or(""));
  if (!tunables.empty()) result.push_back({"GLIBC_TUNABLES", tunables});
  return result;
}

LoadedBlas loaded_blas() {
  LoadedBlas blas;
  dl_iterate_phdr(remember_blas, &blas.library);
  using CoreName = const char* (*)();
  if (auto core_name = reinterpret_cast<CoreName>(dlsym(RTLD_DEFAULT, "openblas_get_corename"))) {
    blas.kernel = core_name();
  }
  return blas;
}

std::vector<std::string> tuning_problems(const CpuFeatures& cpu, const LoadedBlas& blas,
                                         const Environment& environment) {
  std::vector<std::string> problems;
  const std::string kernel = openblas_kernel(cpu);
  if (!blas.kernel.empty()) {
    const bool chosen = environment.get("OPENBLAS_CORETYPE").has_value();
    // Any kernel that is at least as new as the one we would choose is fine: only the old ones are slow.
    const bool modern =
        !kernel.empty() && (upper(blas.kernel) == kernel || upper(blas.kernel) == "ZEN" ||
                            upper(blas.kernel) == "COOPERLAKE" || upper(blas.kernel) == "SAPPHIRERAPIDS");
    if (!kernel.empty() && !chosen && !modern) {
      problems.push_back(fmt::format(
          "slow: OpenBLAS took this processor ({}) for a {}; set OPENBLAS_CORETYPE={}, or start with "
          "`muster run`, which does",
          cpu.brand, blas.kernel, kernel));
    }
  } else if (blas.library.find("libblas.so") != std::string::npos) {
    problems.push_back(
        fmt::format("slow: {} is the reference BLAS, many times slower than OpenBLAS; on Debian: apt-get "
                    "install libopenblas0-pthread",
                    blas.library));
  }
  const std::string isa = safe_onednn_isa(cpu);
  if (!isa.empty() && !blas.library.empty() && !environment.get("DNNL_MAX_CPU_ISA")) {
    problems.push_back(
        fmt::format("unsafe: this processor advertises AMX without describing its tiles, and bf16 products "
                    "would die with "
                    "SIGILL; set DNNL_MAX_CPU_ISA={}, or start with `muster run`, which does",
                    isa));
  }
  return problems;
}

}  // namespace muster::detail
