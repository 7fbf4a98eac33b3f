#pragma once

// Which host a task is on. Two tasks share a host when they run under the same boot of the same kernel, in
// the same network and IPC namespaces: host names prove nothing (containers share them, and machines repeat
// them). A value; any thread may ask.

#include <string>

namespace muster::detail {

struct Host {
  std::string name;      ///< for people
  std::string identity;  ///< equal on two tasks exactly when they share a host

  static Host local();
};

}  // namespace muster::detail
