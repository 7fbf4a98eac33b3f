#pragma once

#include <string>
#include <vector>

#include "muster/collective/communicator_options.h"

namespace muster::detail {

/// A small text of each rank, in their order. Called by all ranks; two collectives in a row, which throw and
/// block as those do. `call` is what the program called: ranks that are in different calls are told so by
/// InvalidArgument, on all of them.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& call,
                                      const std::string& mine);

}  // namespace muster::detail
