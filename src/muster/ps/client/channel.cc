#include "muster/ps/client/channel.h"

namespace muster::detail {

std::unique_ptr<Channel> open_channel(const ChannelOptions& options, Deadline deadline) {
  if (!options.server.local_name.empty()) return open_memory_channel(options, deadline);
  return open_tcp_channel(options, deadline);
}

}  // namespace muster::detail
