#pragma once

// Slurm's compressed lists: nodes "gpu[01-03,07],login1", and counts per node "2(x3),1".

#include <string>
#include <string_view>
#include <vector>

namespace muster::detail {

/// The nodes in order, with leading zeros kept; several brackets in a name multiply. Throws InvalidArgument.
std::vector<std::string> expand_node_list(std::string_view text);

/// "2(x3),1" is {2, 2, 2, 1}. Throws InvalidArgument.
std::vector<int> expand_counts(std::string_view text);

}  // namespace muster::detail
