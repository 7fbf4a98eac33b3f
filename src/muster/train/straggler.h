#pragma once

// Straggler injection: the setting --slow, which makes a worker slower than it is.

#include <string>

#include "muster/base/task_name.h"

namespace muster::detail {

/// How many times longer the steps of this task take: 3 for worker/1 by "worker/1:3x,worker/2:1.5x"; else 1.
/// Throws InvalidArgument.
double straggler_factor(const std::string& setting, const TaskName& task);

}  // namespace muster::detail
