#pragma once

// How long tests go on that let chance decide: for longer by hand, with FUZZ_SECONDS=60 in the environment.

#include <chrono>

#include "muster/base/environment.h"
#include "muster/deadline.h"

namespace muster::detail::testing {

/// After FUZZ_SECONDS, or after what is usual.
inline Deadline fuzz_deadline(std::chrono::milliseconds usual = std::chrono::milliseconds(0)) {
  const auto seconds = Environment::of_process().integer("FUZZ_SECONDS", 0);
  return Deadline::after(seconds ? std::chrono::seconds(*seconds) : usual);
}

}  // namespace muster::detail::testing
