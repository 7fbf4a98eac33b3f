#pragma once

// Memory that the tasks of a host share. An Arena is a reserved range of addresses, backed by an anonymous
// file of the kernel's: memory is taken from it as it is allocated and given back as it is freed. It has no
// name in any file system, so it vanishes with the last process that maps it, however that process ends, and
// the size of /dev/shm does not limit it.
//
//   auto arena = Arena::create(1 << 30);                 // in the task that owns it
//   void* data = arena->allocate(4096);
//   connection.send_descriptor(arena->fd(), deadline);   // to a peer on the same host
//   auto theirs = Arena::open(received_fd);              // in the peer: all of it, now and later
//
// allocate and free are thread-safe, and only for the owner. What is inside is the business of those who
// share it.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "muster/base/mutex.h"

namespace muster::detail {

class Arena {
 public:
  /// Reserves `capacity` bytes of address space; 0: as much as the machine has memory. Throws SystemError.
  static std::shared_ptr<Arena> create(size_t capacity = 0);

  /// Who only reads sees what others write. What it writes all the same is a fault, which a WriteTrap
  /// (shm/write_trap.h) may turn into an error.
  enum class Access { kReadWrite, kReadOnly };

  /// The arena behind a descriptor that a peer gave us; takes the descriptor. An arena that this process has
  /// already is shared as it is, not mapped twice. Throws SystemError.
  static std::shared_ptr<Arena> open(int fd, Access access = Access::kReadWrite);

  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Zeroed at first, then as it was left; at least 64-byte aligned, page aligned from a page on. Throws
  /// SystemError when the arena or the machine's memory is full.
  void* allocate(size_t bytes);
  void free(void* data);

  bool contains(const void* data, size_t bytes) const;
  size_t offset_of(const void* data) const;  ///< never 0 for what allocate() gave
  std::byte* at(size_t offset) const { return base_ + offset; }
  size_t capacity() const { return capacity_; }
  size_t allocated() const;
  int fd() const { return fd_; }

 private:
  Arena(int fd, size_t capacity, bool owner, Access access);

  const int fd_;
  const size_t capacity_;
  std::byte* base_ = nullptr;

  mutable Mutex mutex_;
  std::map<size_t, size_t> free_ MUSTER_GUARDED_BY(mutex_);  // offset -> size; neighbours are merged
  std::map<size_t, size_t> used_ MUSTER_GUARDED_BY(mutex_);
  size_t allocated_ MUSTER_GUARDED_BY(mutex_) = 0;
};

}  // namespace muster::detail
