#pragma once

namespace muster::detail {

/// Thrown through a wait of one of a server's or a channel's threads that has been told to end, and caught
/// where the thread began. Not an Error: nothing is wrong.
struct Stopped {};

}  // namespace muster::detail
