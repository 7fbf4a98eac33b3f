#pragma once

// Which algorithm carries an operation, from its size and where the ranks are. The crossover points are in
// one table, measured with `muster bench` (see docs/collectives.md); `muster bench --explain` prints it. Pure
// functions; any thread may call them.

#include <string>

#include "muster/collective/operation.h"
#include "muster/collective/topology.h"

namespace muster::detail {

/// `wanted` is the user's choice where it can be had; kAuto, or a choice that this collective does not have,
/// leaves it to the table. Depends on nothing that differs between ranks.
Algorithm choose_algorithm(const Operation& operation, const Topology& topology, Algorithm wanted);

/// The table, for people.
std::string explain_choices();

}  // namespace muster::detail
