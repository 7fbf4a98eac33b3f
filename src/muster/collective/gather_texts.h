#pragma once

#include <string>
#include <vector>

#include "muster/collective/communicator_options.h"

namespace muster::detail {

/// A small text of each rank, in their order. Called by all ranks; two collectives in a row, which throw and
/// block as those do.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& mine);

}  // namespace muster::detail
