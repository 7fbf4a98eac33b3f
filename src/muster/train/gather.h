#pragma once

// Small texts and sums of all workers, through their communicator. Called by all ranks.

#include <map>
#include <string>
#include <vector>

#include "muster/collective/communicator.h"

namespace muster {

/// What each rank brought, in their order.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& mine);

/// The sums by name over all ranks, added in their order. A rank need not have all names.
std::map<std::string, double> add_up(Communicator& communicator, const std::map<std::string, double>& mine);

/// Sums as bytes, and what several such come to together.
std::string pack_sums(const std::map<std::string, double>& sums);
std::map<std::string, double> add_packed(const std::vector<std::string>& packed);

}  // namespace muster
