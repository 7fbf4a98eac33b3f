#pragma once

#include <memory>

namespace CLI {
class App;
}

namespace muster::detail {

/// `muster graph place`: what a cluster would make of a graph in a file, without the cluster.
class PlaceCommand {
 public:
  explicit PlaceCommand(CLI::App& parent);
  ~PlaceCommand();

  bool chosen() const;

  /// Prints it. Gives the exit code. Throws as Graph::load() does, and InvalidArgument for what makes no sense.
  int run() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::detail
