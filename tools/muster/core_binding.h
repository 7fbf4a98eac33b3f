#pragma once

// Which cores each task of a node may run on (--bind). The choice is a pure function of the node's cores and
// the number of tasks; only list_cores() asks the system. Any thread may call them.

#include <string>
#include <string_view>
#include <vector>

namespace muster::detail {

enum class CoreBinding {
  kNone,   ///< any task on any core, as the system likes
  kCores,  ///< each task on its share of the cores; the threads of a physical core stay together
  kNuma,   ///< each task on all cores of one NUMA node
};

/// A core as the operating system counts them: a hardware thread.
struct Core {
  int number = 0;
  int numa_node = 0;
  int package = 0;
  int physical = 0;  ///< which core of the package it is a thread of

  auto operator<=>(const Core&) const = default;
};

/// Those that this process may run on, in the order of their numbers.
std::vector<Core> list_cores();

/// The numbers of the cores of each of `tasks` tasks, in ascending order; empty for a task that is not bound.
/// With more tasks than cores or NUMA nodes, neighbours share one.
std::vector<std::vector<int>> bind_to_cores(CoreBinding binding, std::vector<Core> cores, int tasks);

/// "0-3,8", as taskset and the kernel write it.
std::string format_cores(const std::vector<int>& cores);

/// Reads that form; what is malformed is left out.
std::vector<int> parse_cores(std::string_view text);

}  // namespace muster::detail
