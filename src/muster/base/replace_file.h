#pragma once

// Writes files so that nobody ever sees a part of one: what was there is whole until it is replaced.
//
//   replace_file("model.pb", [&](std::ostream& out) { out << bytes; });
//
// Writes to "model.pb.new" first. Blocks. Throws SystemError, with the file and the reason, where it can't be
// written or is there and no file; then what was there stays. Two threads must not replace one file.

#include <functional>
#include <iosfwd>
#include <string>

namespace muster::detail {

void replace_file(const std::string& file, const std::function<void(std::ostream&)>& write);

}  // namespace muster::detail
