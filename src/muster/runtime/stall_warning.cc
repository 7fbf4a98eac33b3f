#include "muster/runtime/stall_warning.h"

#include "muster/base/config.h"
#include "muster/base/environment.h"

namespace muster::detail {

std::chrono::milliseconds stall_warning_of_job() {
  Config config;
  config.read_environment(Environment::of_process());
  return config.stall_warning;
}

}  // namespace muster::detail
