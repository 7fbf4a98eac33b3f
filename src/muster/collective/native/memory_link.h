#pragma once

// A link (net/link.h) between two ranks of one host, over memory that both reach. It uses pipes and a
// doorbell that its maker keeps for it. One thread may send while another receives; nothing blocks or throws.

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "muster/net/link.h"
#include "muster/shm/futex.h"

namespace muster::detail {

/// One direction of a MemoryLink, in shared memory: bytes [tail, head) are on their way.
struct MemoryPipe {
  alignas(64) std::atomic<uint64_t> head{0};
  alignas(64) std::atomic<uint64_t> tail{0};
  alignas(64) std::byte data[256 * 1024];  // fits into a second-level cache beside what is being reduced
};

class MemoryLink : public Link {
 public:
  /// `ours` is the pipe that we fill; `find_theirs` gives the peer's, or nullptr while it has none. The
  /// doorbell is rung when the peer has something to do.
  MemoryLink(MemoryPipe* ours, std::function<MemoryPipe*()> find_theirs, Doorbell* doorbell_of_peer)
      : ours_(ours), find_theirs_(std::move(find_theirs)), doorbell_of_peer_(doorbell_of_peer) {}

  size_t try_send(std::span<const iovec> parts) override;
  size_t try_receive(std::span<const iovec> parts) override;

 private:
  MemoryPipe* const ours_;
  const std::function<MemoryPipe*()> find_theirs_;
  MemoryPipe* theirs_ = nullptr;
  Doorbell* const doorbell_of_peer_;
};

}  // namespace muster::detail
