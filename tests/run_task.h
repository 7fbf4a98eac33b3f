#pragma once

#include <functional>
#include <vector>

#include "muster/job/job_context.h"
#include "muster/run.h"

namespace muster::detail {

/// Enters the job that the environment names, without flags, and runs `body`; gives the exit code.
inline int run_task(const std::function<void(Job&)>& body) {
  std::vector<char*> no_flags = {const_cast<char*>("task"), nullptr};
  return run(1, no_flags.data(), body);
}

}  // namespace muster::detail
