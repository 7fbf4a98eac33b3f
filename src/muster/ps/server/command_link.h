#pragma once

// Commands on their way from the leader to a follower.

#include "muster/net/connection.h"
#include "muster/ps/policy/update_policy.h"

namespace muster::detail {

/// Both throw PeerLost, and DataLoss for what is no command.
void send_command(Connection& connection, const Command& command, Deadline deadline);
Command receive_command(Connection& connection, const std::function<void()>& check);

}  // namespace muster::detail
