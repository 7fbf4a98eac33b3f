#pragma once

// What each rank of a host keeps in its arena for the host's other ranks to read and write: its doorbell, the
// headers of its operations, how far it has come. HostGroup says how they use it.
//
// A header fits one cache line when the data in it is at most 32 bytes: such an operation costs one line from
// each peer. The lines of a longer header, up to some 500 bytes, are fetched at the same time, and so cost
// little more.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "muster/shm/futex.h"
#include "muster/shm/work_counter.h"

namespace muster::detail {

constexpr size_t kCacheLine = 64;

/// Data up to this size travels in the header slot. Beyond it, copying twice costs more than to wait for all
/// ranks twice.
constexpr size_t kInlineBytes = size_t{16} * 1024;

/// What a rank called, and where its data is.
struct alignas(128) HeaderSlot {
  std::atomic<uint64_t> sequence{0};
  uint64_t call = 0;  // collective, dtype, op and root, packed
  uint64_t count = 0;
  uint64_t offset = 0;  // of the data in the arena; 0: not in it
  std::array<std::byte, kInlineBytes> inline_data{};
};

struct RankState {
  Doorbell doorbell;
  alignas(64) std::atomic<int> cpu{-1};          // where the rank last ran
  alignas(64) std::atomic<uint64_t> phase{0};    // a counter that only grows: how far the rank has come
  std::atomic<uint32_t> failed{0};               // the rank has given up an operation: its data may be gone
  alignas(64) std::atomic<uint64_t> staging{0};  // offset of the staging buffer, once there is one
  std::array<HeaderSlot, 2> headers;             // of two successive operations
  // Blocks of an operation that any rank may reduce for all; those of the host's first rank are used.
  std::array<WorkCounter, 2> work_counters;

  /// Behind it: the offsets of our pipes to the host's ranks, on two channels; 0 while there is none.
  static size_t bytes(int ranks) {
    return sizeof(RankState) + 2 * sizeof(uint64_t) * static_cast<size_t>(ranks);
  }
  std::atomic<uint64_t>& pipe(int channel, int ranks, int to) {
    return reinterpret_cast<std::atomic<uint64_t>*>(this + 1)[channel * ranks + to];
  }
};

}  // namespace muster::detail
