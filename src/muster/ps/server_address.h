#pragma once

// Where a parameter server can be reached.

#include <string>

#include "muster/net/address.h"

namespace muster::detail {

struct ServerAddress {
  Address address;
  std::string local_name;  ///< of its endpoint, where it is on this host; else empty
};

}  // namespace muster::detail
