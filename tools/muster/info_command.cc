#include "muster/info_command.h"

#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <gnu/libc-version.h>

#include "muster/base/config.h"
#include "muster/base/cpu.h"
#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/base/tune.h"
#include "muster/cluster/identity.h"
#include "muster/core_binding.h"
#include "muster/find_program.h"
#include "muster/net/host.h"
#include "muster/net/interface.h"

namespace muster::detail {
namespace {

// Variables that change how training runs or how fast it is; what else is set is nobody's business.
constexpr std::array kTelling = {
    "OMP_",    "OPENBLAS_",  "MKL_",       "DNNL_",     "ONEDNN_", "GLIBC_TUNABLES", "KMP_", "GOMP_",
    "OMPI_",   "LD_PRELOAD", "LD_LIBRARY", "MALLOC_",   "TORCH_",  "SLURM_",         "PMI_", "PMIX_",
    "MASTER_", "RANK",       "WORLD_S",    "TF_CONFIG", "GRPC_",   "CUDA_VISIBLE"};

// In the names of variables whose values are not for a report: MUSTER_SECRET, SLURM_JWT.
constexpr std::array kSecretWords = {"SECRET", "JWT", "TOKEN", "PASSWORD", "KEY"};

void add(std::string& text, const std::string& name, const std::string& value) {
  text += fmt::format("{:<12} {}\n", name, value.empty() ? "none" : value);
}

std::string value_in_file(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    line.erase(0, key.size());
    std::erase(line, '"');
    return line.substr(std::min(line.find_first_not_of(" \t"), line.size()));
  }
  return "";
}

std::string system_text() {
  utsname name{};
  uname(&name);
  return fmt::format("{}, {} {} {}, glibc {}", value_in_file("/etc/os-release", "PRETTY_NAME="), name.sysname,
                     name.release, name.machine, gnu_get_libc_version());
}

std::string instruction_sets(const CpuFeatures& cpu) {
  std::string text;
  for (const auto& [has, name] : {std::pair{cpu.avx2, "AVX2"},
                                  {cpu.avx512, "AVX-512"},
                                  {cpu.avx512_vnni, "VNNI"},
                                  {cpu.avx512_bf16, "BF16"},
                                  {cpu.amx, cpu.amx_described ? "AMX" : "AMX (not described)"}}) {
    if (has) text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
  }
  return text.empty() ? "no vector extensions that Muster uses" : text;
}

std::string cores_text() {
  const auto cores = list_cores();
  std::map<int, std::vector<int>> of_node;
  std::map<std::tuple<int, int, int>, int> physical;
  for (const auto& core : cores) {
    of_node[core.numa_node].push_back(core.number);
    ++physical[{core.numa_node, core.package, core.physical}];
  }
  std::string text = fmt::format("{} of {} online, {} physical", cores.size(), sysconf(_SC_NPROCESSORS_ONLN),
                                 physical.size());
  for (const auto& [node, numbers] : of_node)
    text += fmt::format("; NUMA node {}: {}", node, format_cores(numbers));
  return text;
}

std::string memory_text() {
  const auto total =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::string text = format_bytes(total);
  const std::string available = value_in_file("/proc/meminfo", "MemAvailable:");
  if (const auto kib = parse_integer(available.substr(0, available.find(' '))))
    text += fmt::format(", {} available", format_bytes(static_cast<size_t>(*kib) << 10U));
  return text;
}

std::string limit_text(const char* name, int resource) {
  rlimit limit{};
  getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  const auto shown = [](rlim_t value) {
    return value == RLIM_INFINITY ? std::string("unlimited") : std::to_string(value);
  };
  return fmt::format("{} {} (at most {})", name, shown(limit.rlim_cur), shown(limit.rlim_max));
}

// The library that libtorch takes its matrix products from, which the system's alternatives choose.
std::string blas_text() {
  dlopen("libblas.so.3", RTLD_LAZY | RTLD_GLOBAL);
  const LoadedBlas blas = loaded_blas();
  if (blas.library.empty()) return "";
  std::error_code error;
  const auto path = std::filesystem::canonical(blas.library, error);
  return fmt::format("{}{}", error ? blas.library : path.string(),
                     blas.kernel.empty() ? ", not OpenBLAS" : ", OpenBLAS with the kernel " + blas.kernel);
}

std::string engines_text() {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  std::string text = "native";
  for (const char* engine : {"mpi", "gloo"}) {
    const std::string file = fmt::format("libmuster_engine_{}.so", engine);
    if (std::filesystem::exists(folder / file) ||
        std::filesystem::exists(folder.parent_path() / "lib" / file))
      text += fmt::format(", {}", engine);
  }
  return text;
}

std::string launcher_text(const Environment& environment) {
  try {
    Config config;
    config.read_environment(environment);
    const auto identity = find_identity(config);
    if (identity.launcher == "none") return "none: a program would run alone";
    return fmt::format("{}: this process is {} of {} tasks", identity.launcher, identity.task.short_name(),
                       identity.count("worker") + identity.count("ps"));
  } catch (const InvalidArgument& error) {
    return fmt::format("a mistake: {}", error.what());
  }
}

// Other launchers whose command is in PATH.
std::string commands_text(const Environment& environment) {
  std::string text;
  for (const char* command : {"mpirun", "torchrun", "srun", "ssh"}) {
    try {
      text += fmt::format("{}{}", text.empty() ? "" : ", ",
                          find_program(command, environment.get("PATH").value_or("/usr/bin:/bin")));
    } catch (const InvalidArgument&) {
      continue;
    }
  }
  return text;
}

std::string interfaces_text() {
  std::string text;
  for (const auto& [name, address] : list_interfaces())
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, address);
  return text;
}

}  // namespace

std::string describe_machine(const Environment& environment) {
  std::string text;
  add(text, "muster", MUSTER_VERSION ", built " MUSTER_BUILT);
  add(text, "libtorch", MUSTER_TORCH_VERSION);
  add(text, "gRPC", MUSTER_GRPC_VERSION ", protobuf " MUSTER_PROTOBUF_VERSION);
  add(text, "engines", engines_text());
  add(text, "system", system_text());
  add(text, "host", Host::local().name);
  const auto cpu = CpuFeatures::detect();
  add(text, "processor", fmt::format("{}: {}", cpu.brand, instruction_sets(cpu)));
  add(text, "cores", cores_text());
  add(text, "memory", memory_text());
  add(text, "BLAS", blas_text());
  for (const auto& problem : tuning_problems(cpu, loaded_blas(), environment)) add(text, "", problem);
  std::string tuned;
  for (const auto& [name, value] : tuning(cpu, available_cores(), 1, environment))
    tuned += fmt::format("{}{}={}", tuned.empty() ? "" : " ", name, value);
  add(text, "tuning", tuned.empty() ? "" : tuned + ", by muster run for one task");
  add(text, "launcher", launcher_text(environment));
  add(text, "commands", commands_text(environment));
  add(text, "interfaces", interfaces_text());
  add(text, "limits",
      fmt::format("{}; {}; {}; {}", limit_text("open files", RLIMIT_NOFILE),
                  limit_text("processes", RLIMIT_NPROC), limit_text("locked memory", RLIMIT_MEMLOCK),
                  limit_text("core files", RLIMIT_CORE)));
  std::vector<std::string> names = environment.names_with_prefix("MUSTER_");
  for (const char* prefix : kTelling) {
    for (const auto& name : environment.names_with_prefix(prefix)) names.push_back(name);
  }
  for (const auto& name : names) {
    const bool is_secret = std::ranges::any_of(
        kSecretWords, [&](const char* word) { return name.find(word) != std::string::npos; });
    add(text, "variable",
        fmt::format("{}={}", name, is_secret ? "(set)" : environment.get(name).value_or("")));
  }
  return text;
}

InfoCommand::InfoCommand(CLI::App& parent)
    : app_(parent.add_subcommand("info", "print what a report of a fault should say of this machine")) {}

bool InfoCommand::chosen() const {
  return app_->parsed();
}

int InfoCommand::run() const {
  fmt::print("{}", describe_machine(Environment::of_process()));
  return 0;
}

}  // namespace muster::detail
