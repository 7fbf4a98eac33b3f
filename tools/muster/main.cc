// muster: the command line.

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/flags.h"
#include "muster/bench_command.h"
#include "muster/run_command.h"

int main(int argc, char** argv) {
  CLI::App app{"Muster: distributed training for C++ on libtorch"};
  app.set_version_flag("--version", "muster " MUSTER_VERSION);
  app.require_subcommand(1);
  muster::RunCommand run(app);
  muster::BenchCommand bench(app);
  if (const auto code = muster::parse_flags(app, argc, argv)) return *code;
  try {
    if (run.chosen()) return run.run();
    if (bench.chosen()) return bench.run();
  } catch (const muster::InvalidArgument& error) {
    fmt::print(stderr, "muster: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "muster: {}\n", error.what());
    return 1;
  }
  return 0;
}
