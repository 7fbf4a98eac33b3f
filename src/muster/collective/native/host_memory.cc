#include "muster/collective/native/host_memory.h"

#include <atomic>
#include <cstring>

namespace muster {
namespace {

constexpr size_t kHead = 128;  // before each block: how many ranks hold it

std::byte* head_of(void* block) {
  return static_cast<std::byte*>(block) - kHead;
}

std::atomic<int>& readers_of(void* block) {
  return *reinterpret_cast<std::atomic<int>*>(head_of(block));
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

void HostMemory::release(void* block) {
  readers_of(block).fetch_sub(1);
}

void HostMemory::retire(void* block) {
  const MutexLock lock(mutex_);
  retired_.push_back(block);
  collect();
}

void HostMemory::discard(void* block) {
  arena_->free(head_of(block));
}

void HostMemory::collect() {
  std::erase_if(retired_, [this](void* block) {
    if (readers_of(block).load() > 0) return false;
    arena_->free(head_of(block));
    return true;
  });
}

}  // namespace muster
