// muster-graph: the words of `muster` that run or look at graphs.

#include "graph/graph_command.h"
#include "graph/server_command.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/flags.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{"Muster: graphs on clusters", "muster"};
  app.require_subcommand(1);
  muster::detail::ServerCommand server_command(app);
  const muster::detail::GraphCommand graph_command(app);
  if (const auto code = muster::detail::parse_flags(app, argc, argv)) return *code;
  return server_command.chosen() ? server_command.run() : graph_command.run();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const muster::InvalidArgument& error) {
    fmt::print(stderr, "muster: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "muster: {}\n", error.what());
    return 1;
  }
}
