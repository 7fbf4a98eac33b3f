#include "muster/bench_command.h"

#include <unistd.h>

#include <filesystem>
#include <string_view>

#include <CLI/CLI.hpp>

#include "muster/base/error.h"

namespace muster::detail {

BenchCommand::BenchCommand(CLI::App& parent) {
  parent.add_subcommand("bench",
                        "measure collectives, training or parameter servers beside other libraries "
                        "(muster-bench)");
}

bool BenchCommand::chosen(int argc, char** argv) {
  return argc > 1 && std::string_view(argv[1]) == "bench";
}

void BenchCommand::run(char** argv) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string program = folder / "muster-bench";
  if (!std::filesystem::exists(program)) {
    raise<InvalidArgument>(
        "bench: there is no muster-bench in {}. It is not installed: in Muster's sources, build it with "
        "scripts/build release muster-bench (or cmake --build build/release --target muster-bench), and use "
        "the muster beside it",
        folder.string());
  }
  argv[1] = const_cast<char*>(program.c_str());
  execv(program.c_str(), argv + 1);
  raise<SystemError>("bench: {} can't be executed: {}", program, describe_errno(errno));
}

}  // namespace muster::detail
