#pragma once

// Orders on their way from the first server to another.

#include "muster/net/connection.h"
#include "muster/ps/update_policy.h"

namespace muster {

/// Both throw PeerLost, and DataLoss for what is no order.
void send_order(Connection& connection, const Order& order, Deadline deadline);
Order receive_order(Connection& connection, const std::function<void()>& check);

}  // namespace muster
