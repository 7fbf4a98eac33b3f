#pragma once

// Numbers by name, added up over all ranks.

#include <map>
#include <string>
#include <vector>

#include "muster/communicator.h"

namespace muster::detail {

/// The sums by name over all ranks, added in their order. A rank need not have all names. Called by all
/// ranks in the same `call` of the program; throws and blocks as gather_texts() does.
std::map<std::string, double> add_up(Communicator& communicator, const std::string& call,
                                     const std::map<std::string, double>& mine);

/// Sums as bytes, and what several such come to together: for those who bring them to each other in another
/// way. add_packed() throws InvalidArgument for bytes that are no sums.
std::string pack_sums(const std::map<std::string, double>& sums);
std::map<std::string, double> add_packed(const std::vector<std::string>& packed);

}  // namespace muster::detail
