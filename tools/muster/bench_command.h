#pragma once

#include <string>

namespace CLI {
class App;
}

namespace muster::detail {

/// `muster bench ARGS...` is the program muster-bench, which stands beside this one when it was built. It is
/// no part of `muster`: who trains needs neither it nor the libraries that it compares with.
class BenchCommand {
 public:
  /// Adds the word `bench` to what `muster --help` lists.
  explicit BenchCommand(CLI::App& parent);

  /// Whether this is the command: its arguments are for muster-bench to read, --help too.
  static bool chosen(int argc, char** argv);

  /// Becomes muster-bench with the arguments after `bench`: signals and the exit code are its own. Returns
  /// only by throwing: InvalidArgument that says how to build it when it is not there, else SystemError.
  [[noreturn]] static void run(char** argv);
};

}  // namespace muster::detail
