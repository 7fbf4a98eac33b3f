#include "muster/base/tune.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::map<std::string, std::string> as_map(const std::vector<TuneVariable>& variables) {
  std::map<std::string, std::string> result;
  for (const auto& variable : variables) result[variable.name] = variable.value;
  return result;
}

const CpuFeatures kSapphireRapids = {.brand = "Xeon",
                                     .avx2 = true,
                                     .avx512 = true,
                                     .avx512_vnni = true,
                                     .avx512_bf16 = true,
                                     .amx = true,
                                     .amx_described = true};

TEST(Tuning, ChoosesTheKernelByInstructionSet) {
  EXPECT_EQ(as_map(tuning({.avx2 = true, .avx512 = true}, 2, 1, {}))["OPENBLAS_CORETYPE"], "SKYLAKEX");
  EXPECT_EQ(as_map(tuning({.avx2 = true}, 2, 1, {}))["OPENBLAS_CORETYPE"], "HASWELL");
  EXPECT_EQ(as_map(tuning({.amd = true, .avx2 = true}, 2, 1, {}))["OPENBLAS_CORETYPE"], "ZEN");
  EXPECT_EQ(as_map(tuning({}, 2, 1, {})).count("OPENBLAS_CORETYPE"), 0u);
}

TEST(Tuning, KeepsOneDnnOffTilesThatAreNotDescribed) {
  CpuFeatures cpu = kSapphireRapids;
  EXPECT_EQ(as_map(tuning(cpu, 2, 1, {})).count("DNNL_MAX_CPU_ISA"), 0u);
  cpu.amx_described = false;
  EXPECT_EQ(as_map(tuning(cpu, 2, 1, {}))["DNNL_MAX_CPU_ISA"], "AVX512_CORE_BF16");
}

TEST(Tuning, SharesTheCoresAndNeverGivesLessThanOne) {
  EXPECT_EQ(as_map(tuning({}, 8, 2, {}))["OMP_NUM_THREADS"], "4");
  EXPECT_EQ(as_map(tuning({}, 2, 64, {}))["OMP_NUM_THREADS"], "1");
}

TEST(Tuning, LeavesTheUsersChoiceAlone) {
  const Environment chosen(
      {{"OMP_NUM_THREADS", "7"}, {"OPENBLAS_CORETYPE", "HASWELL"}, {"DNNL_MAX_CPU_ISA", "AVX2"}});
  CpuFeatures cpu = kSapphireRapids;
  cpu.amx_described = false;
  EXPECT_THAT(tuning(cpu, 8, 2, chosen), IsEmpty());
}

const CpuFeatures kZen3 = {.brand = "EPYC 7003", .amd = true, .family = 0x19, .erms = true, .avx2 = true};

TEST(Tuning, KeepsGlibcFromRepMovsbWhereItIsSlow) {
  constexpr auto kNever = "glibc.cpu.x86_rep_movsb_threshold=1000000000";
  EXPECT_EQ(as_map(tuning(kZen3, 2, 1, {}))["GLIBC_TUNABLES"], kNever);
  CpuFeatures cpu = kZen3;
  cpu.family = 0x17;  // Zen 2
  EXPECT_EQ(as_map(tuning(cpu, 2, 1, {})).count("GLIBC_TUNABLES"), 0U);
  cpu = kZen3;
  cpu.erms = false;  // as a hypervisor may say
  EXPECT_EQ(as_map(tuning(cpu, 2, 1, {})).count("GLIBC_TUNABLES"), 0U);
  cpu = kZen3;
  cpu.amd = false;
  EXPECT_EQ(as_map(tuning(cpu, 2, 1, {})).count("GLIBC_TUNABLES"), 0U);
}

TEST(Tuning, AddsToTheUsersTunablesAndOverridesNone) {
  const Environment other({{"GLIBC_TUNABLES", "glibc.malloc.check=3"}});
  EXPECT_EQ(as_map(tuning(kZen3, 2, 1, other))["GLIBC_TUNABLES"],
            "glibc.malloc.check=3:glibc.cpu.x86_rep_movsb_threshold=1000000000");
  for (const char* own : {"glibc.cpu.x86_rep_movsb_threshold=4096",
                          "glibc.malloc.check=3:glibc.cpu.x86_rep_movsb_threshold=4096"}) {
    EXPECT_EQ(as_map(tuning(kZen3, 2, 1, {{"GLIBC_TUNABLES", own}})).count("GLIBC_TUNABLES"), 0U) << own;
  }
}

TEST(TuningProblems, NamesASlowKernelWithTheRemedy) {
  const LoadedBlas prescott = {.library = "/usr/lib/libopenblas.so.0", .kernel = "Prescott"};
  EXPECT_THAT(tuning_problems(kSapphireRapids, prescott, {}),
              ElementsAre(HasSubstr("OPENBLAS_CORETYPE=SKYLAKEX")));
  EXPECT_THAT(tuning_problems(kSapphireRapids, prescott, Environment{{"OPENBLAS_CORETYPE", "PRESCOTT"}}),
              IsEmpty());
  EXPECT_THAT(tuning_problems(kSapphireRapids, {.library = "libopenblas.so.0", .kernel = "SkylakeX"}, {}),
              IsEmpty());
}

TEST(TuningProblems, NamesTheReferenceBlas) {
  EXPECT_THAT(tuning_problems(kSapphireRapids, {.library = "/usr/lib/blas/libblas.so.3"}, {}),
              ElementsAre(HasSubstr("libopenblas0-pthread")));
}

TEST(TuningProblems, NamesUnsafeTiles) {
  CpuFeatures cpu = kSapphireRapids;
  cpu.amx_described = false;
  const LoadedBlas blas = {.library = "libopenblas.so.0", .kernel = "SkylakeX"};
  EXPECT_THAT(tuning_problems(cpu, blas, {}), ElementsAre(HasSubstr("DNNL_MAX_CPU_ISA=AVX512_CORE_BF16")));
  EXPECT_THAT(tuning_problems(cpu, blas, Environment{{"DNNL_MAX_CPU_ISA", "AVX2"}}), IsEmpty());
}

TEST(TuningProblems, AProgramWithoutBlasHasNone) {
  EXPECT_THAT(tuning_problems(kSapphireRapids, {}, {}), IsEmpty());
}

TEST(CpuFeatures, AgreesWithTheCompilersOwnDetection) {
  const auto cpu = CpuFeatures::detect();
  EXPECT_EQ(cpu.avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(cpu.avx512_bf16, __builtin_cpu_supports("avx512bf16") != 0);
  EXPECT_EQ(cpu.avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512cd"));
  EXPECT_EQ(cpu.amd, __builtin_cpu_is("amd") != 0);
  EXPECT_EQ(cpu.family == 0x19 && cpu.amd, __builtin_cpu_is("amdfam19h") != 0);
  EXPECT_GE(available_cores(), 1);
}

}  // namespace
}  // namespace muster::detail
