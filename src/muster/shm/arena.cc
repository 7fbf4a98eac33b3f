#include "muster/shm/arena.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "muster/base/align.h"
#include "muster/base/descriptor.h"
#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kPage = 4096;

size_t machine_memory() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t available_memory() {
  return static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// What this process has mapped, by the identity of the file: a mapping belongs to the process.
struct Mapped {
  Mutex mutex;
  std::map<std::pair<dev_t, ino_t>, std::weak_ptr<Arena>> arenas MUSTER_GUARDED_BY(mutex);
};

Mapped& mapped() {
  static auto* table = new Mapped;
  return *table;
}

std::pair<dev_t, ino_t> identity_of(int fd, size_t* size = nullptr) {
  struct stat status {};
  if (fstat(fd, &status) != 0) raise<SystemError>("an arena could not be read: {}", describe_errno(errno));
  if (size != nullptr) *size = static_cast<size_t>(status.st_size);
  return {status.st_dev, status.st_ino};
}

}  // namespace

std::shared_ptr<Arena> Arena::create(size_t capacity) {
  capacity = round_up(capacity == 0 ? machine_memory() : capacity, kPage);
  const int fd = memfd_create("muster-arena", MFD_CLOEXEC);
  if (fd < 0) raise<SystemError>("no shared memory for an arena: {}", describe_errno(errno));
  if (ftruncate(fd, static_cast<off_t>(capacity)) != 0) {
    const int error = errno;
    close(fd);
    raise<SystemError>("an arena of {} can't be made: {}", format_bytes(capacity), describe_errno(error));
  }
  std::shared_ptr<Arena> arena(new Arena(fd, capacity, /*owner=*/true, Access::kReadWrite));
  const MutexLock lock(mapped().mutex);
  mapped().arenas[identity_of(fd)] = arena;
  return arena;
}

std::shared_ptr<Arena> Arena::open(int fd, Access access) {
  Descriptor descriptor(fd);
  size_t size = 0;
  const auto identity = identity_of(fd, &size);
  const MutexLock lock(mapped().mutex);
  if (auto known = mapped().arenas[identity].lock()) return known;
  std::shared_ptr<Arena> arena(new Arena(descriptor.release(), size, /*owner=*/false, access));
  mapped().arenas[identity] = arena;
  return arena;
}

Arena::Arena(int fd, size_t capacity, bool owner, Access access) : fd_(fd), capacity_(capacity) {
  const bool reads = access == Access::kReadOnly;
  void* base = mmap(nullptr, capacity, reads ? PROT_READ : PROT_READ | PROT_WRITE,
                    (reads ? MAP_PRIVATE : MAP_SHARED) | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    close(fd);
    raise<SystemError>("an arena of {} can't be mapped: {}; is the address space limited (ulimit -v)?",
                       format_bytes(capacity), describe_errno(error));
  }
  base_ = static_cast<std::byte*>(base);
  madvise(base, capacity, MADV_HUGEPAGE);      // where the system lets shared memory have them
  if (owner) free_[kPage] = capacity - kPage;  // nothing is at offset 0
}

Arena::~Arena() {
  munmap(base_, capacity_);
  {
    const MutexLock lock(mapped().mutex);
    auto& arenas = mapped().arenas;
    const auto found = arenas.find(identity_of(fd_));
    if (found != arenas.end() && found->second.expired()) arenas.erase(found);
  }
  close(fd_);
}

void* Arena::allocate(size_t bytes) {
  const size_t size = round_up(std::max<size_t>(bytes, 1), bytes >= kPage ? kPage : kLine);
  const size_t alignment = bytes >= kPage ? kPage : kLine;
  const MutexLock lock(mutex_);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [begin, length] = *range;
    const size_t offset = round_up(begin, alignment);
    if (offset + size > begin + length) continue;
    const size_t first = offset / kPage * kPage;
    // Take the memory now: later, a machine without any would answer with a signal instead of an error.
    if (madvise(base_ + first, offset + size - first, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
      raise<SystemError>("no memory for {} in an arena, of which {} are allocated: {}", format_bytes(bytes),
                         format_bytes(allocated_), describe_errno(errno));
    }
    free_.erase(range);
    if (offset > begin) free_[begin] = offset - begin;
    if (offset + size < begin + length) free_[offset + size] = begin + length - offset - size;
    used_[offset] = size;
    allocated_ += size;
    return base_ + offset;
  }
  raise<SystemError>("the arena is full: {} wanted, {} of {} are allocated (the machine has {} free)",
                     format_bytes(bytes), format_bytes(allocated_), format_bytes(capacity_),
                     format_bytes(available_memory()));
}

void Arena::free(void* data) {
  const MutexLock lock(mutex_);
  const auto range = used_.find(offset_of(data));
  MUSTER_CHECK(range != used_.end(), "this was not allocated from the arena");
  auto [offset, size] = *range;
  used_.erase(range);
  allocated_ -= size;
  if (size >= kPage && offset % kPage == 0) madvise(base_ + offset, size, MADV_REMOVE);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + size) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_[offset] = size;
}

bool Arena::contains(const void* data, size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  return begin >= base_ && begin + bytes <= base_ + capacity_;
}

size_t Arena::offset_of(const void* data) const {
  return static_cast<size_t>(static_cast<const std::byte*>(data) - base_);
}

size_t Arena::allocated() const {
  const MutexLock lock(mutex_);
  return allocated_;
}

}  // namespace muster::detail
