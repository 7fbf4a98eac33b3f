#pragma once

#include <memory>

namespace CLI {
class App;
}

namespace muster::detail {

/// `muster graph`: looks at graphs, where their nodes would be, and pipelines, without running anything.
class GraphCommand {
 public:
  explicit GraphCommand(CLI::App& parent);
  ~GraphCommand();

  /// Does what its own word says. Gives the exit code.
  int run() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::detail
