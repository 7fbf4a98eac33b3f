#pragma once

// The workers that read a server's parameters while it wants to change them.

#include <chrono>
#include <functional>
#include <vector>

#include "muster/ps/session_slot.h"

namespace muster::detail {

/// Waits for those of `slots` who read an older version than this, which was announced before: who comes
/// later reads this one. A slow reader is waited for as long as it gets on (it would begin again and again
/// otherwise), one that does not for `timeout`; nobody any more when `is_over`.
void wait_for_readers(const std::vector<const SessionSlot*>& slots, int64_t version, Doorbell& doorbell,
                      SpinPolicy spin_policy, const std::function<bool()>& is_over,
                      std::chrono::milliseconds timeout);

}  // namespace muster::detail
