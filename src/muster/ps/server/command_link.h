#pragma once

// Commands on their way from the leader to a follower.

#include "muster/net/connection.h"
#include "muster/ps/policy/update_policy.h"

namespace muster::detail {

/// Both block until it has gone or come, and call `check` now and then, which may throw. They throw PeerLost,
/// and DataLoss for what is no command.
void send_command(Connection& connection, const Command& command, const std::function<void()>& check);
Command receive_command(Connection& connection, const std::function<void()>& check);

}  // namespace muster::detail
