#pragma once

namespace CLI {
class App;
}

namespace muster::detail {

/// Words of the command line that are programs of their own, which stand beside this one: `muster bench` is
/// muster-bench, which needs the libraries that it compares with; `muster server` and `muster graph` are
/// muster-graph, which needs libtorch. Who launches needs neither.
class OtherProgram {
 public:
  /// Adds the words to what `muster --help` lists.
  explicit OtherProgram(CLI::App& parent);

  /// Whether the first argument is one of them: all the others are for that program to read, --help too.
  static bool chosen(int argc, char** argv);

  /// Becomes that program: signals and the exit code are its own. Returns only by throwing: InvalidArgument
  /// that says how to build it when it is not there, else SystemError.
  [[noreturn]] static void run(char** argv);
};

}  // namespace muster::detail
