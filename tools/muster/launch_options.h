#pragma once

// What `muster run` was asked for, whether it can be, and what follows from it for all tasks of a node.
// Values and functions without state; any thread may use them.

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "muster/base/config.h"
#include "muster/core_binding.h"
#include "muster/launch_spec.h"

namespace muster::detail {

struct LaunchOptions {
  LaunchSpec spec;
  int node = 0;
  std::vector<std::string> command;
  std::filesystem::path log_dir;  ///< where a folder for this run is made; empty: none
  std::filesystem::path tee;
  std::vector<std::string> only;
  std::vector<std::string> variables;  ///< for all tasks: NAME=value, or NAME for the value that it has here
  bool timestamps = false;
  int max_restarts = 0;
  std::chrono::milliseconds grace{std::chrono::seconds(5)};
  CoreBinding binding = CoreBinding::kNone;
  bool tune = true;
  bool oversubscribe = false;  ///< start more tasks than this node can take
  Config config;  ///< of the tasks: coordinator, job id, secret, interface, timeouts; and the environment

  /// Throws InvalidArgument for what can't work on any node: counts, nodes, --only, --env, and settings that
  /// have no effect.
  void check() const;

  /// The same for what can't work on this node, which has `cores` cores.
  void check_node(int cores) const;
};

/// The environment of the tasks of a node, before each is told who it is.
struct NodeEnvironment {
  Environment variables;
  std::string tuned;  ///< what was chosen for the processor, for people: " NAME=value NAME=value"
};

/// That of the launcher, with the variables of --env and, unless --no-tune, what the processor needs.
NodeEnvironment environment_of_node(const LaunchOptions& options);

}  // namespace muster::detail
