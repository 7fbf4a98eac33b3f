#pragma once

// What a worker holds in memory. Pure, but for memory_of().

#include <sys/types.h>

#include <optional>
#include <string_view>
#include <vector>

namespace muster::detail::bench::train {

/// In MiB.
struct MemoryUse {
  double rss = 0;
  double pss = 0;  ///< a page that n processes map counts 1/n; other subjects map the same libraries
  double own = 0;  ///< of that, what is no file: the heap, and the share of shared memory
};

/// From the text of /proc/PID/smaps_rollup. Nothing when it lacks a field.
std::optional<MemoryUse> parse_memory(std::string_view smaps_rollup);

/// The mean over these processes. Nothing when one of them has gone.
std::optional<MemoryUse> memory_of(const std::vector<pid_t>& pids);

}  // namespace muster::detail::bench::train
