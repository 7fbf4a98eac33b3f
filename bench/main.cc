// muster-bench, which `muster bench` becomes.

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/collective/command.h"
#include "muster/base/error.h"
#include "muster/base/flags.h"

int main(int argc, char** argv) {
  CLI::App app("measure a collective, training or parameter servers beside other libraries, on this machine",
               "muster bench");
  muster::BenchCommand bench(app);
  if (const auto code = muster::parse_flags(app, argc, argv)) return *code;
  try {
    return bench.run();
  } catch (const muster::InvalidArgument& error) {
    fmt::print(stderr, "muster: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "muster: {}\n", error.what());
    return 1;
  }
}
