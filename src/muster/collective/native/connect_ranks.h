#pragma once

// How the ranks of a group connect. Each tells all who it is, where its data port is and which host it is on;
// then every pair makes a control connection. Inside a host that is a Unix socket, through which the two give
// each other their arenas: ranks share memory when it has really been opened, not because they seem to be on
// one host. Where that fails, all ranks of that host use TCP. Blocks until all have come, at most for
// Options::rendezvous_timeout; one thread of each rank calls it.

#include <map>
#include <string>
#include <vector>

#include "muster/collective/communicator_options.h"
#include "muster/collective/native/host_group.h"
#include "muster/collective/native/host_memory.h"
#include "muster/collective/native/rank_info.h"

namespace muster::detail {

struct ConnectedRanks {
  std::string id;  ///< of the group, unlike any other's
  std::vector<RankInfo> ranks;
  std::vector<int> host_of_rank;          ///< ranks with the same number share memory
  std::map<int, Connection> connections;  ///< to every other rank
  std::map<int, HostPeer>
      host_peers;  ///< of this rank's host, itself among them; empty when it is alone there
};

/// Calls options.rendezvous twice, and once more when some ranks can't share memory after all; without
/// `may_retry` that is an error. Throws PeerLost, DeadlineExceeded.
ConnectedRanks connect_ranks(const Communicator::Options& options, HostMemory& memory, bool may_retry);

}  // namespace muster::detail
