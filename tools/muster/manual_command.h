#pragma once

#include <string>

namespace CLI {
class App;
}

namespace muster::detail {

/// `muster manual` and `muster completion`: what manual.h makes, on standard output.
class ManualCommand {
 public:
  explicit ManualCommand(CLI::App& parent);

  bool chosen() const;
  int run() const;

 private:
  const CLI::App& muster_;
  CLI::App* manual_;
  CLI::App* completion_;
  std::string page_ = "muster-run";
  std::string format_ = "man";
  std::string shell_;
};

}  // namespace muster::detail
