#pragma once

#include <functional>
#include <string>
#include <vector>

#include "muster/deadline.h"

namespace muster::detail {

/// How the ranks of a group find each other: each brings a text and gets those of all, in the order of ranks.
/// Called by all ranks, equally often; blocks until all have come, and throws DeadlineExceeded at the
/// deadline.
using Rendezvous = std::function<std::vector<std::string>(const std::string& mine, Deadline deadline)>;

}  // namespace muster::detail
