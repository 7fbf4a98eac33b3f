#pragma once

#include <memory>

namespace CLI {
class App;
}

namespace muster {

/// `muster bench`: its flags, and what it does with them.
class BenchCommand {
 public:
  /// `app` is muster-bench.
  explicit BenchCommand(CLI::App& app);
  ~BenchCommand();

  /// 0, 1 when a subject failed or gave wrong results, 128 + the signal that stopped it.
  int run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// `muster bench --explain`: which algorithm Muster chooses for which size, and why. The exit code.
int explain();

}  // namespace muster
