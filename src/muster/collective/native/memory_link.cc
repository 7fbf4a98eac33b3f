#include "muster/collective/native/memory_link.h"

#include <algorithm>

#include "muster/base/copy.h"

namespace muster::detail {

size_t MemoryLink::try_send(std::span<const iovec> parts) {
  const uint64_t head = ours_->head.load(std::memory_order_relaxed);
  size_t room = sizeof(ours_->data) - (head - ours_->tail.load(std::memory_order_acquire));
  size_t total = 0;
  for (const auto& part : parts) {
    const auto* from = static_cast<const std::byte*>(part.iov_base);
    size_t left = std::min(part.iov_len, room);
    room -= left;
    while (left > 0) {
      const size_t at = (head + total) % sizeof(ours_->data);
      const size_t size = std::min(left, sizeof(ours_->data) - at);
      copy_bytes(ours_->data + at, from, size);
      from += size;
      left -= size;
      total += size;
    }
  }
  if (total > 0) {
    ours_->head.exchange(head + total);
    wake(*doorbell_of_peer_);
  }
  return total;
}

size_t MemoryLink::try_receive(std::span<const iovec> parts) {
  if (theirs_ == nullptr) theirs_ = find_theirs_();
  if (theirs_ == nullptr) return 0;
  const uint64_t tail = theirs_->tail.load(std::memory_order_relaxed);
  size_t ready = theirs_->head.load(std::memory_order_acquire) - tail;
  size_t total = 0;
  for (const auto& part : parts) {
    auto* to = static_cast<std::byte*>(part.iov_base);
    size_t left = std::min(part.iov_len, ready);
    ready -= left;
    while (left > 0) {
      const size_t at = (tail + total) % sizeof(theirs_->data);
      const size_t size = std::min(left, sizeof(theirs_->data) - at);
      copy_bytes(to, theirs_->data + at, size);
      to += size;
      left -= size;
      total += size;
    }
  }
  if (total > 0) {
    theirs_->tail.exchange(tail + total);
    wake(*doorbell_of_peer_);
  }
  return total;
}

}  // namespace muster::detail
