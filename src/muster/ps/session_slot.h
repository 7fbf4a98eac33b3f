#pragma once

// What a worker and a server say to each other in a session, in memory that both reach. Each worker has a
// SessionSlot for every server, in its own arena, and every server has a doorbell, in an arena of its own.
// Where they are on different hosts, the slot is in the server's memory, and a RemoteWorker
// (server/remote_worker.h) does for the worker what is said here.
//
//   worker   writes the request and where its gradients are, counts `posted` up, rings the server's doorbell
//   server   reads them, answers when it has decided, counts `answered` up, rings the worker's doorbell
//   worker   reads the parameters of a version (store_view.h), `reading` while it does
//
// Publishing is by sequentially consistent exchange (shm/futex.h). A worker has one request at a time.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "muster/ps/policy/update_policy.h"
#include "muster/shm/futex.h"

namespace muster::detail {

struct Request {
  enum class Kind : uint32_t {
    kInitialise,  ///< what lies at the offsets are the first parameters, not gradients
    kEnter,
    kPush,
    kData,  ///< to followers: the gradients of a push, on which the leader decides
    kFinishEpoch,
    kAway,
    kBack,
    kResume,
    kLeave,
  };
  Kind kind = Kind::kEnter;
  uint32_t pull = 0;  ///< 1: a RemoteWorker sends the parameters behind the answer
  Push push;
};

/// Whether what came from elsewhere is a request at all.
inline bool is_request(const Request& request) {
  return request.kind <= Request::Kind::kLeave &&
         reinterpret_cast<const unsigned char&>(request.push.skip) <= 1;
}

struct Reply {
  enum class Kind : uint32_t { kBegin, kDone, kTaken };
  Kind kind = Kind::kBegin;
  Mode mode = Mode::kAsync;
  Answer::Outcome outcome = Answer::Outcome::kNone;
  int64_t step = 0;
  int64_t version = 0;
  int64_t samples = 0;
  int64_t staleness = 0;
  double loss = 0;
  double total = 0;
};

struct SessionSlot {
  Doorbell doorbell;  ///< where the worker sleeps
  alignas(64) std::atomic<uint64_t> posted{0};
  Request request;
  alignas(64) std::atomic<uint64_t> answered{0};
  Reply reply;
  alignas(64) std::atomic<uint64_t> consumed{0};  ///< the last sequence whose gradients nobody needs any more
  alignas(64) std::atomic<int64_t> reading{0};    ///< the worker copies this version less one; 0: none
  std::atomic<uint64_t> chunks_read{0};           ///< counts up while it copies: it lives, however slow it is

  /// Behind it: for each slice of the server the offset of the worker's gradient in its arena; 0: it has
  /// none.
  uint64_t* offsets() { return reinterpret_cast<uint64_t*>(this + 1); }
  static size_t bytes(size_t slices) { return sizeof(SessionSlot) + slices * sizeof(uint64_t); }
  static SessionSlot* make(void* memory) { return new (memory) SessionSlot; }
};

}  // namespace muster::detail
