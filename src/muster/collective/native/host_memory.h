#pragma once

// This task's arena, shared by a communicator and its splits, with memory that the other ranks of the host
// read: such memory is freed when all of them have let go of it, which may be later than when its owner has.
//
// Thread-safe. Nothing blocks. Throws SystemError when memory is full.

#include <cstddef>
#include <memory>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/shm/arena.h"

namespace muster::detail {

class HostMemory {
 public:
  explicit HostMemory(size_t capacity) : arena_(Arena::create(capacity)) {}

  const std::shared_ptr<Arena>& arena() const { return arena_; }

  /// Zeroed memory, aligned to two cache lines, that `readers` ranks (the owner among them) will let go of.
  void* allocate(size_t bytes, int readers);

  /// Lets go of memory, of one's own or of another rank's.
  static void release(void* data);

  /// Frees memory once nobody holds it any more: now, or in a later call.
  void retire(void* data);

  /// Frees memory that no other rank has heard of, or that all have forgotten.
  void discard(void* data);

 private:
  void collect() MUSTER_REQUIRES(mutex_);

  const std::shared_ptr<Arena> arena_;
  Mutex mutex_;
  std::vector<void*> retired_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::detail
