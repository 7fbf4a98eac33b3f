#pragma once

// Which of a host's addresses a task gives to the others. Functions that ask the system; any thread may call
// them. A host that is given by name is looked up, which may block for as long as the resolver takes.

#include <string>
#include <string_view>
#include <vector>

#include "muster/net/address.h"

namespace muster::detail {

struct Interface {
  std::string name;     ///< "eth0"
  std::string address;  ///< "10.0.0.7"
};

/// The interfaces of this host that are up, with their IPv4 addresses first, then IPv6 (no link-local ones).
std::vector<Interface> list_interfaces();

/// The first of `interfaces` that `choice` admits: names or prefixes in order of preference ("ib,eth"), or
/// with ^ all but these ("^lo,docker"). Throws InvalidArgument that lists what there is when none fits.
Interface choose_interface(const std::vector<Interface>& interfaces, std::string_view choice);

/// The local address from which this host reaches `peer`: the one to give to tasks beside that peer.
/// No packet is sent. Throws SystemError when there is no route or no such host.
std::string address_towards(const Address& peer);

}  // namespace muster::detail
