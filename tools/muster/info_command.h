#pragma once

#include <string>

#include "muster/base/environment.h"

namespace CLI {
class App;
}

namespace muster::detail {

/// `muster info`: what somebody needs to know of this machine and this Muster to understand a report of a
/// fault, one thing a line.
class InfoCommand {
 public:
  explicit InfoCommand(CLI::App& parent);

  bool chosen() const;
  int run() const;

 private:
  CLI::App* app_;
};

/// What it prints. Asks the system; loads the BLAS that libtorch would load into this process.
std::string describe_machine(const Environment& environment);

}  // namespace muster::detail
