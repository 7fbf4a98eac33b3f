#pragma once

#include <cstdint>
#include <string>

#include <fmt/format.h>

namespace muster::detail {

/// Who a rank is.
struct RankInfo {
  std::string task;  // "worker/2"; "rank 2" in a group whose ranks have no names
  std::string host_name;
  std::string host_identity;  // equal for ranks that may share memory
  std::string machine;        // equal for ranks that compete for the same cores
  int64_t pid = 0;
  std::string address;     // of its data port
  std::string local_name;  // the same for peers on its host
  std::string token;       // made anew for each communicator

  /// For messages: "worker/2 (host b, pid 4711)".
  std::string to_string() const { return fmt::format("{} (host {}, pid {})", task, host_name, pid); }
};

}  // namespace muster::detail
