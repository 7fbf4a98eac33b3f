#pragma once

namespace muster::detail {

/// The width of the terminal that `fd` is, as it is now; 0 when it is none, or does not say.
int terminal_columns(int fd);

}  // namespace muster::detail
