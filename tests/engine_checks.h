#pragma once

// What an engine promises besides the results of its operations, checked with gtest's assertions. All ranks
// call the same check. Those of faults leave the group broken.

#include <string>
#include <vector>

#include "muster/communicator.h"

namespace muster::detail::testing {

void check_same_bits(Communicator& communicator);
/// What is not a number on one rank is so in the result, also in a minimum and a maximum; so are signs.
void check_no_number(Communicator& communicator);
void check_operations_in_flight(Communicator& communicator);
void check_split(Communicator& communicator);

/// Rank 1 calls something else than the others; all must say so.
void check_mismatch(Communicator& communicator);

/// Rank 1 comes too late for the others.
void check_deadline(Communicator& communicator);

/// A task whose engine is set by --engine: it reduces, and prints what carried it.
int reduce_in_a_job(const std::vector<std::string>& arguments);

}  // namespace muster::detail::testing
