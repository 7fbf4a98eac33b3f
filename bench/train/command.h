#pragma once

#include <memory>

namespace CLI {
class App;
}

namespace muster {

/// `muster bench train`: its flags, and what it does with them.
class BenchTrainCommand {
 public:
  /// `parent` is `muster bench`.
  explicit BenchTrainCommand(CLI::App& parent);
  ~BenchTrainCommand();

  bool chosen() const;

  /// 0, 1 when a subject failed, 128 + the signal that stopped it.
  int run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
