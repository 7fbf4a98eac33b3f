#pragma once

#include <memory>

namespace CLI {
class App;
}

namespace muster::detail {

/// `muster server`: a task of a cluster that runs graphs, as a program; and how to stop one.
class ServerCommand {
 public:
  explicit ServerCommand(CLI::App& parent);
  ~ServerCommand();

  bool chosen() const;

  /// Serves until somebody stops it, or SIGINT or SIGTERM does. Gives the exit code.
  int run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::detail
