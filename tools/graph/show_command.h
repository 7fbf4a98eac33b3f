#pragma once

#include <memory>

namespace CLI {
class App;
}

namespace muster::detail {

/// `muster graph show`: the nodes of a graph in a file, as text or as a drawing.
class ShowCommand {
 public:
  explicit ShowCommand(CLI::App& parent);
  ~ShowCommand();

  bool chosen() const;

  /// Prints it. Gives the exit code. Throws as Graph::load() does, and InvalidArgument for what makes no sense.
  int run() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::detail
