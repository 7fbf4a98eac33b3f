#include "muster/ps/server/leader_link.h"

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/ps/server/command_link.h"
#include "muster/ps/session_protocol.h"

namespace muster::detail {

void LeaderLink::follow(const std::function<void(Command command)>& take) {
  Connection leader = options_.endpoint.accept(command_channel_name(options_.job_id, options_.model_id),
                                               Deadline::never(), options_.check);
  try {
    for (;;) take(receive_command(leader, options_.check));
  } catch (const PeerLost&) {
    log_debug("the leader is gone");
  }
  is_there_ = false;
}

void LeaderLink::add_up(std::span<double> numbers) {
  ++sums_;
  if (!sums_link_)
    sums_link_.emplace(options_.endpoint.accept(sum_channel_name(options_.job_id, options_.model_id),
                                                Deadline::never(), options_.check));
  try {
    send_numbers(*sums_link_, sums_, numbers, options_.check);
    receive_numbers(*sums_link_, sums_, numbers, options_.check);
  } catch (const PeerLost& error) {
    raise<PeerLost>("parameter server 0, which decides, is gone in the middle of an update: {}",
                    error.what());
  }
}

}  // namespace muster::detail
