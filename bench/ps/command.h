#pragma once

#include <memory>

namespace CLI {
class App;
}

namespace muster {

/// `muster bench ps`: its flags, and what it does with them.
class BenchPsCommand {
 public:
  /// `parent` is `muster bench`.
  explicit BenchPsCommand(CLI::App& parent);
  ~BenchPsCommand();

  bool chosen() const;

  /// 0, 1 when a subject failed or gave wrong results, 128 + the signal that stopped it.
  int run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
