#pragma once

// What a worker and a server say to each other, in memory that both reach. Each worker has a Desk for every
// server, in its own arena, and every server has a Door, in one of its own. Where they are on different hosts
// a RemoteWorker (remote_worker.h) sits at a Desk in the server's memory for the worker.
//
//   worker   writes the request and where its gradients are, counts `posted` up, rings the door
//   server   reads them, answers when it has decided, counts `answered` up, rings the worker's bell
//   worker   reads the parameters of a version (store_view.h), `reading` while it does
//
// Publishing is by sequentially consistent exchange (net/signal.h). A worker has one request at a time.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "muster/net/signal.h"
#include "muster/ps/update_policy.h"

namespace muster {

struct Request {
  enum class Kind : uint32_t {
    kInitialise,  ///< what lies at the places are the first parameters, not gradients
    kJoin,
    kPush,
    kData,  ///< to servers other than the first: the gradients of a push, which the first one decides on
    kRest,
    kLeave,
  };
  Kind kind = Kind::kJoin;
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
  Answer::Verdict verdict = Answer::Verdict::kNone;
  int64_t step = 0;
  int64_t version = 0;
  int64_t staleness = 0;
  double loss = 0;
  double total = 0;
};

struct Desk {
  Bell bell;  ///< where the worker sleeps
  alignas(64) std::atomic<uint64_t> posted{0};
  Request request;
  alignas(64) std::atomic<uint64_t> answered{0};
  Reply reply;
  alignas(64) std::atomic<uint64_t> consumed{0};  ///< the last sequence whose gradients nobody needs any more
  alignas(64) std::atomic<int64_t> reading{0};    ///< the worker copies this version less one; 0: none

  /// Behind it: for each slice of the server where the worker's gradient is, in its arena; 0: it has none.
  uint64_t* places() { return reinterpret_cast<uint64_t*>(this + 1); }
  static size_t bytes(size_t slices) { return sizeof(Desk) + slices * sizeof(uint64_t); }
  static Desk* make(void* memory) { return new (memory) Desk; }
};

struct Door {
  Bell bell;  ///< where the server sleeps
};

}  // namespace muster
