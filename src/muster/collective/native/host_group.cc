#include "muster/collective/native/host_group.h"

#include <sched.h>

#include <algorithm>
#include <cstddef>

#include "muster/base/copy.h"
#include "muster/base/error.h"

namespace muster::detail {
namespace {

uint64_t pack(const Operation& operation) {
  return static_cast<uint64_t>(operation.collective) | static_cast<uint64_t>(operation.dtype) << 8 |
         static_cast<uint64_t>(operation.op) << 16 | static_cast<uint64_t>(operation.peer) << 32;
}

Operation unpack(const HeaderSlot& header) {
  Operation operation;
  operation.collective = static_cast<Collective>(header.call & 0xff);
  operation.dtype = static_cast<DType>(header.call >> 8 & 0xff);
  operation.op = static_cast<ReduceOp>(header.call >> 16 & 0xff);
  operation.peer = static_cast<int>(header.call >> 32);
  operation.count = header.count;
  return operation;
}

constexpr int kYields = 20;  // beside other work each may last a time slice: then it is better to be woken
constexpr int kWaitsBeforeMoving = 32;        // to move costs as much as some dozen switches
constexpr int kSpinsWhenOversubscribed = 40;  // about as long as two switches between ranks

constexpr size_t kFirstLineBytes = kCacheLine - offsetof(HeaderSlot, inline_data);  // of the data
constexpr size_t kMostLinesAtOnce = 8;  // a core fetches about a dozen

// Asks for a cache line to be this core's alone, so that a later write to it does not wait.
void prefetch_to_write(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));  // the builtin would only read
#else
  __builtin_prefetch(line, 1);
#endif
}

}  // namespace

HostGroup::HostGroup(HostMemory& memory, std::vector<HostPeer> peers, int index, int cores)
    : memory_(memory),
      peers_(std::move(peers)),
      index_(index),
      cores_(cores),
      oversubscribed_(size() > cores),
      spin_policy_(SpinPolicy::of(size(), cores)),
      spins_(oversubscribed_ ? kSpinsWhenOversubscribed : spin_policy_.spins) {}

HostGroup::~HostGroup() {
  // The others may still read what is ours: it is freed when all have let go of it.
  for (const auto& other : peers_) {
    if (const uint64_t staging = other.state->staging.load()) HostMemory::release(other.arena->at(staging));
    HostMemory::release(other.state);
  }
  if (staging_ != nullptr) memory_.retire(staging_);
  memory_.retire(mine().state);
}

int HostGroup::index_of(int rank) const {
  for (int i = 0; i < size(); ++i) {
    if (peer(i).rank == rank) return i;
  }
  return -1;
}

void HostGroup::wake_others() {
  for (const auto& other : peers_) {
    if (&other != &mine()) wake(other.state->doorbell);
  }
}

// Spins, yields, then sleeps until here(index) holds for every other rank from `first` to `last`. A rank that
// last ran on our core can't come before we leave it: we yield at once. One that ran on another may be about
// to come, and to yield to a third that waits as we do would only cost two switches: we spin.
template <typename Here>
void HostGroup::wait_until_here(const OperationContext& context, int first, int last, const Here& here) {
  int cpu = note_cpu();
  int spins = 0;
  for (int yields = 0; yields < kYields;) {
    int on_our_core = -1;
    while (first < last && (first == index_ || here(first))) ++first;
    if (first == last) return;
    for (int i = first; i < last; ++i) {
      if (peer(i).state->cpu.load(std::memory_order_relaxed) == cpu && i != index_ && !here(i))
        on_our_core = i;
    }
    if (on_our_core < 0 && ++spins < spins_) {
      spin_pause();
      continue;
    }
    spins = 0;
    ++yields;
    // Of two that share a core while another is free, the one behind looks for a core of its own.
    if (!oversubscribed_ && on_our_core >= 0 && on_our_core < index_ &&
        ++shared_waits_ % kWaitsBeforeMoving == 0) {
      leave_core(cpu);
    } else {
      std::this_thread::yield();
    }
    cpu = note_cpu();
  }
  wait_until(
      mine().state->doorbell, {},
      [&] {
        while (first < last && (first == index_ || here(first))) ++first;
        return first == last;
      },
      [&] {
        check(context, [&] {
          std::vector<int> missing;
          for (int i = first; i < last; ++i) {
            if (i != index_ && !here(i)) missing.push_back(peer(i).rank);
          }
          return missing;
        });
      });
  note_cpu();
}

// The scheduler would separate us too, but takes milliseconds, which is thousands of small operations. Does
// nothing when the user has left us no other core.
void HostGroup::leave_core(int cpu) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  cpu_set_t others = allowed;
  CPU_CLR(cpu, &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof(others), &others) != 0) return;
  sched_setaffinity(0, sizeof(allowed), &allowed);
}

// Where we run, for those who wait for us.
int HostGroup::note_cpu() {
  const int cpu = sched_getcpu();
  auto& noted = mine().state->cpu;
  if (noted.load(std::memory_order_relaxed) != cpu) noted.store(cpu, std::memory_order_relaxed);
  return cpu;
}

void HostGroup::begin(const OperationContext& context, size_t offset, const void* data, size_t bytes) {
  const uint64_t sequence = ++sequence_;
  HeaderSlot& header = mine().state->headers[sequence % 2];
  // The first line last and all at once: those who wait look at it, and would take it from us in between.
  const auto* const from = static_cast<const std::byte*>(data);
  const size_t in_first_line = std::min(bytes, kFirstLineBytes);
  if (bytes > in_first_line)
    copy_bytes(header.inline_data.data() + in_first_line, from + in_first_line, bytes - in_first_line);
  header.call = pack(context.called);
  header.count = context.called.count;
  header.offset = offset;
  copy_bytes(header.inline_data.data(), from, in_first_line);
  header.sequence.exchange(sequence);
  wake_others();
  const size_t more_lines = std::min((bytes - in_first_line + kCacheLine - 1) / kCacheLine, kMostLinesAtOnce);
  wait_until_here(context, 0, size(), [&](int i) {
    const HeaderSlot& theirs = peer(i).state->headers[sequence % 2];
    // All lines of the header are on their way at the same time, not the others after the first.
    for (size_t line = 1; line <= more_lines; ++line)
      __builtin_prefetch(reinterpret_cast<const std::byte*>(&theirs) + line * kCacheLine);
    return theirs.sequence.load(std::memory_order_acquire) >= sequence;
  });
  // Everyone is done with the last operation: its header slot and its work counter are free for the next. The
  // slot's lines, which the others have read, come back to this core while the caller goes on.
  HeaderSlot& next_header = mine().state->headers[(sequence + 1) % 2];
  for (size_t line = 0; line <= more_lines; ++line)
    prefetch_to_write(reinterpret_cast<const std::byte*>(&next_header) + line * kCacheLine);
  if (index_ == 0) mine().state->work_counters[(sequence + 1) % 2].reset();
  for (int i = 0; i < size(); ++i) {
    const HeaderSlot& theirs = peer(i).state->headers[sequence % 2];
    if (theirs.call == header.call && theirs.count == header.count) continue;
    context.error.fail(
        GroupError::Kind::kMismatch,
        fmt::format("{} called {}, {} called {}", context.describe(peer(index_).rank),
                    unpack(header).to_string(), context.describe(peer(i).rank), unpack(theirs).to_string()),
        context.during());
  }
}

void HostGroup::advance_phase() {
  mine().state->phase.exchange(++phase_);
  wake_others();
}

void HostGroup::wait_for_phase(const OperationContext& context, int index, uint64_t phase) {
  wait_until_here(context, index, index + 1,
                  [&](int i) { return peer(i).state->phase.load(std::memory_order_acquire) >= phase; });
}

void HostGroup::wait_for_all(const OperationContext& context, uint64_t phase) {
  wait_until_here(context, 0, size(),
                  [&](int i) { return peer(i).state->phase.load(std::memory_order_acquire) >= phase; });
  check_whole(context);
}

void HostGroup::check_whole(const OperationContext& context) const {
  for (int i = 0; i < size(); ++i) {
    if (i != index_ && peer(i).state->failed.load() != 0)
      context.connection_broke(peer(i).rank, "it gave up an operation");
  }
}

std::byte* HostGroup::staging(size_t bytes) {
  if (staging_ == nullptr) {
    staging_ = static_cast<std::byte*>(memory_.allocate(bytes, size()));
    mine().state->staging.store(arena().offset_of(staging_), std::memory_order_release);
  }
  return staging_;
}

std::byte* HostGroup::staging_of(int index) const {
  return peer(index).arena->at(peer(index).state->staging.load(std::memory_order_acquire));
}

}  // namespace muster::detail
