#pragma once

#include <cstdint>
#include <string>

#include "muster/base/task_name.h"

namespace muster::detail {

/// What every task of a job knows of each.
struct TaskInfo {
  TaskName task;
  std::string address;        ///< "10.0.0.7:2222"
  std::string host_name;      ///< for people
  std::string host_identity;  ///< Host::identity: equal exactly for tasks of one host
  int64_t pid = 0;
  int incarnation = 0;  ///< how often the launcher has restarted it

  /// "worker/2 (host b, pid 4711)"
  std::string describe() const;
};

}  // namespace muster::detail
