#include "muster/collective/native/host_memory.h"

#include <atomic>
#include <cstring>

namespace muster::detail {
namespace {

constexpr size_t kHead = 128;  // before what it gives: how many ranks hold it

std::byte* head_of(void* data) {
  return static_cast<std::byte*>(data) - kHead;
}

std::atomic<int>& readers_of(void* data) {
  return *reinterpret_cast<std::atomic<int>*>(head_of(data));
}

}  // namespace

void* HostMemory::allocate(size_t bytes, int readers) {
  const MutexLock lock(mutex_);
  collect();
  auto* head = static_cast<std::byte*>(arena_->allocate(bytes + kHead));
  memset(head, 0, bytes + kHead);
  new (head) std::atomic<int>(readers);
  return head + kHead;
}

void HostMemory::release(void* data) {
  readers_of(data).fetch_sub(1);
}

void HostMemory::retire(void* data) {
  const MutexLock lock(mutex_);
  retired_.push_back(data);
  collect();
}

void HostMemory::discard(void* data) {
  arena_->free(head_of(data));
}

void HostMemory::collect() {
  std::erase_if(retired_, [this](void* data) {
    if (readers_of(data).load() > 0) return false;
    arena_->free(head_of(data));
    return true;
  });
}

}  // namespace muster::detail
