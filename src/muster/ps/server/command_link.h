#pragma once

// What the leader and a follower say to each other: commands, from the leader, over one connection; and,
// where an update needs norms over all shards, each server's part of a sum and then the whole sum, over
// another.
//
// All of it blocks until it has gone or come, and calls `check` now and then, which may throw. It throws
// PeerLost, and DataLoss for what the other should not send.

#include <span>

#include "muster/net/connection.h"
#include "muster/ps/policy/update_policy.h"

namespace muster::detail {

void send_command(Connection& connection, const Command& command, const std::function<void()>& check);
Command receive_command(Connection& connection, const std::function<void()>& check);

/// Numbers of the n-th sum of a training, n from 1. Both sides know how many there are.
void send_numbers(Connection& connection, uint64_t n, std::span<const double> numbers,
                  const std::function<void()>& check);
void receive_numbers(Connection& connection, uint64_t n, std::span<double> numbers,
                     const std::function<void()>& check);

}  // namespace muster::detail
