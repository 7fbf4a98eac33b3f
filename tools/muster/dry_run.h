#pragma once

// `muster run --dry-run`: what would be started on this node, with which environment.

#include <string>

#include "muster/launch_options.h"

namespace muster::detail {

/// For each task of this node a command that a shell takes, with the variables that differ from this
/// process's own. Ports are 1, 2, ..., and hosts of several nodes are node0, node1, ...: the true ones are
/// known when the job starts, as is the secret. Throws InvalidArgument as Launcher does for options that
/// can't work.
std::string describe_launch(const LaunchOptions& options);

}  // namespace muster::detail
