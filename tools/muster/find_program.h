#pragma once

#include <string>

namespace muster::detail {

/// The file to execute for `name`: a path as it is; else looked up in `search_path` (as PATH), then beside
/// this program. Throws InvalidArgument that says where was looked.
std::string find_program(const std::string& name, const std::string& search_path);

}  // namespace muster::detail
