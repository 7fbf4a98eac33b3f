#pragma once

// How tensors are copied: every path that carries them uses these two instead of std::memcpy, which in glibc
// takes the instruction `rep movsb` from a few KiB on. On AMD's Zen 3 that falls from 31 to 2.8 GB/s when the
// destination lies 1 to 16 bytes behind the source modulo 4,096; and so it mostly does, since a large malloc
// begins 16 bytes into a page and a block of an arena at its start. The loops here are of vectors, and as
// fast wherever the two lie. Three builds of the same code, for AVX-512, AVX2 and any processor; the best
// that this machine has is chosen at run time. On processors without the fault, as Intel's, std::memcpy
// itself copies what is not large: it is up to 1.6 times faster in a first-level cache.
//
// Source and destination must not overlap. Any thread may call these; they do not throw.

#include <cstddef>
#include <cstring>

#include "muster/base/cpu.h"

namespace muster::detail {

/// Below this many bytes std::memcpy has no loop at all, and copies them with a few overlapping vectors.
constexpr size_t kSmallCopy = 512;

/// From here on copy_bytes() does what stream_bytes() does: nothing that is so large would still be in a
/// cache of its core when it is read.
constexpr size_t kLargeCopy = size_t{8} << 20;

/// The loops of one build, for kSmallCopy bytes or more.
struct CopyKernels {
  void (*copy)(void* destination, const void* source, size_t bytes);
  void (*stream)(void* destination, const void* source, size_t bytes);

  const char* name;
};

/// Those of a particular set; nullptr when this machine or this build does not have it.
const CopyKernels* copy_kernels_of(KernelSet set);

/// Those that copy_bytes() and stream_bytes() use: of the best set, or with std::memcpy where that is faster.
const CopyKernels& copy_kernels();

/// As std::memcpy.
inline void copy_bytes(void* destination, const void* source, size_t bytes) {
  if (bytes >= kSmallCopy) return copy_kernels().copy(destination, source, bytes);
  if (bytes > 0) std::memcpy(destination, source, bytes);
}

/// As std::memcpy, past the caches: for what is large and will not be read soon. The destination's lines are
/// not fetched first, which saves a third of the memory traffic.
inline void stream_bytes(void* destination, const void* source, size_t bytes) {
  if (bytes >= kSmallCopy) return copy_kernels().stream(destination, source, bytes);
  if (bytes > 0) std::memcpy(destination, source, bytes);
}

}  // namespace muster::detail
