#pragma once

// Executes the stages of a plan that go over links. Everything is a stream: a rank sends whatever of a block
// is ready and takes whatever has come, in one loop over all links; a segment is reduced while the next is on
// its way, and is sent on while the one behind it is reduced. What may be sent or written when follows from
// the plan's rule (see plan.h), applied to elements instead of blocks.
//
// On each link an operation begins with a header that says what was called: ranks that called different
// things find out before they touch an element.
//
// An executor is used by one thread at a time.

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "muster/collective/native/block_layout.h"
#include "muster/collective/native/operation_context.h"
#include "muster/collective/plan/plan.h"
#include "muster/net/link.h"
#include "muster/shm/futex.h"

namespace muster::detail {

class LinkExecutor {
 public:
  struct Options {
    int rank = 0;
    std::function<Link&(int rank, const OperationContext&)> link;  ///< to a peer; made when first used
    Doorbell* doorbell = nullptr;                                  ///< rung by peers on this host
    int wake_fd = -1;                                              ///< readable when the group has failed
    SpinPolicy spin_policy;
    size_t segment =
        size_t{512} * 1024;           ///< bytes that are sent, or received before they are reduced, at once
    std::optional<DType> wire_dtype;  ///< what float32 sums travel as
  };

  explicit LinkExecutor(Options options) : options_(std::move(options)) {}

  /// Sends from `from` and receives into `to`, which are the same buffer in all but all-to-all. Both hold the
  /// blocks of `layout`.
  void run(const OperationContext& context, const Stage& stage, const BlockLayout& layout, const void* from,
           void* to);

 private:
  class Run;

  struct Scratch {
    std::vector<std::byte> incoming;  // a segment that waits to be reduced
    std::vector<std::byte> outgoing;  // a segment converted to the wire dtype
    std::vector<float> widened;       // a received segment converted back
  };

  const Options options_;
  std::map<int, Scratch> scratch_;  // of each peer
};

}  // namespace muster::detail
