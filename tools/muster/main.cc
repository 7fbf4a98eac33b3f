// muster: the command line.

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/flags.h"
#include "muster/info_command.h"
#include "muster/manual_command.h"
#include "muster/other_program.h"
#include "muster/run_command.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{"Muster: distributed training for C++ on libtorch"};
  app.set_version_flag("--version", "muster " MUSTER_VERSION);
  app.require_subcommand(1);
  muster::detail::RunCommand run_command(app);
  const muster::detail::OtherProgram other_program(app);
  const muster::detail::InfoCommand info_command(app);
  const muster::detail::ManualCommand manual_command(app);
  if (muster::detail::OtherProgram::chosen(argc, argv)) muster::detail::OtherProgram::run(argv);
  if (const auto code = muster::detail::parse_flags(app, argc, argv)) return *code;
  if (info_command.chosen()) return info_command.run();
  if (manual_command.chosen()) return manual_command.run();
  return run_command.chosen() ? run_command.run() : 0;
}

// A descriptor that we open must not become our input or output because that was closed.
void open_closed_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", O_RDWR);
  }
}

}  // namespace

int main(int argc, char** argv) {
  open_closed_streams();
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
