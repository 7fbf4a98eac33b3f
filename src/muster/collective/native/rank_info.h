#pragma once

#include <cstdint>
#include <string>

namespace muster::detail {

/// Who a rank is, for messages: "rank 2 (host b, pid 4711)".
struct RankInfo {
  std::string host_name;
  std::string host_identity;  // equal for ranks that may share memory
  std::string machine;        // equal for ranks that compete for the same cores
  int64_t pid = 0;
  std::string address;     // of its data port
  std::string local_name;  // the same for peers on its host
  std::string token;       // made anew for each communicator
};

}  // namespace muster::detail
