#pragma once

// What every engine must do, checked element by element with gtest's assertions. All ranks of the group call
// the same check.

#include <cstdint>
#include <vector>

#include "muster/communicator.h"

namespace muster::detail::testing {

/// Every operation on every type, for counts from none to 1,500 elements, in memory of the communicator and
/// in ordinary memory, with a guard behind each buffer. Ends at the first fatal failure.
void check_all_operations(Communicator& communicator);

/// The bits of an average of numbers whose sum depends on the order of additions: they must be the same on
/// all ranks.
std::vector<uint32_t> inexact_average(Communicator& communicator, size_t count);

}  // namespace muster::detail::testing
