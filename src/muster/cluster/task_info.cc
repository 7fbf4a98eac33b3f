#include "muster/cluster/task_info.h"

#include <fmt/format.h>

namespace muster::detail {

std::string TaskInfo::describe() const {
  return fmt::format("{} (host {}, pid {})", task.short_name(), host_name, pid);
}

}  // namespace muster::detail
