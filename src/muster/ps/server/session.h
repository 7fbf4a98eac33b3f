#pragma once

// A worker's session with this server, as the server keeps it.
//
// A thread of the Acceptor makes it and hands it over through the EventQueue: until then it is that thread's,
// afterwards the working thread's, but for what is constant (worker, incarnation, where the slot is), which
// the Acceptor goes on reading.

#include <map>
#include <memory>

#include "muster/optim/shard_update.h"
#include "muster/ps/server/remote_worker.h"
#include "muster/ps/session_slot.h"
#include "muster/shm/arena.h"

namespace muster::detail {

struct Session {
  int worker = 0;
  int incarnation = 0;
  SessionSlot* slot = nullptr;
  const std::byte* base = nullptr;                  ///< where the offsets of the slot count from
  size_t capacity = 0;                              ///< bytes from there on
  std::shared_ptr<Arena> arena;                     ///< on this host; or
  std::shared_ptr<RemoteWorker> remote;             ///< on another
  uint64_t seen = 0;                                ///< requests
  uint64_t pushed = 0;                              ///< the last sequence
  std::map<uint64_t, ShardUpdate::SliceData> data;  ///< of pushes that have not been used up, by sequence
};

/// Where the gradients are that its worker has delivered last. Throws InvalidArgument when it says that one
/// lies where none can.
ShardUpdate::SliceData gradients_of(const Session& session, const FlatLayout& layout);

}  // namespace muster::detail
