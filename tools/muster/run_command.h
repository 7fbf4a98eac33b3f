#pragma once

#include <memory>

namespace CLI {
class App;
}

namespace muster::detail {

/// `muster run`: its flags, and what it does with them.
class RunCommand {
 public:
  explicit RunCommand(CLI::App& parent);
  ~RunCommand();

  bool chosen() const;
  int run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::detail
