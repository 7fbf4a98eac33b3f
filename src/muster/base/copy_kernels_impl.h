// The loops of copy.h, compiled once for each instruction set by copy_kernels_portable.cc,
// copy_kernels_avx2.cc and copy_kernels_avx512.cc. Everything is in an unnamed namespace: the linker must not
// take what was compiled for one processor into another's path.

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "muster/base/copy.h"

namespace muster::detail {
namespace {

#if defined(__AVX512F__)
using Vector = __m512i;
inline void store_past_caches(std::byte* to, Vector value) {
  _mm512_stream_si512(reinterpret_cast<Vector*>(to), value);
}
#elif defined(__AVX2__)
using Vector = __m256i;
inline void store_past_caches(std::byte* to, Vector value) {
  _mm256_stream_si256(reinterpret_cast<Vector*>(to), value);
}
#elif defined(__x86_64__)
using Vector = __m128i;
inline void store_past_caches(std::byte* to, Vector value) {
  _mm_stream_si128(reinterpret_cast<Vector*>(to), value);
}
#else
typedef uint64_t Vector __attribute__((vector_size(16)));
inline void store_past_caches(std::byte* to, Vector value) {
  __builtin_memcpy(to, &value, sizeof(value));
}
#endif

constexpr size_t kWidth = sizeof(Vector);
constexpr size_t kLine = 64;
constexpr size_t kBlock = 4 * kWidth;
constexpr size_t kPage = 4096;
static_assert(kLine + kBlock <= kSmallCopy);

inline Vector load(const std::byte* from) {
  Vector value;
  __builtin_memcpy(&value, from, kWidth);
  return value;
}

inline void store(std::byte* to, Vector value) {
  __builtin_memcpy(to, &value, kWidth);
}

inline void copy_line(std::byte* to, const std::byte* from) {
  for (size_t i = 0; i < kLine; i += kWidth) store(to + i, load(from + i));
}

// Four loads, then four stores. The compiler must not see through the pointers: it would find that a loop of
// these is a memcpy, and call it.
template <auto kStore>
inline void copy_block(std::byte* to, const std::byte* from) {
#if defined(__GNUC__)
  __asm__("" : "+r"(to), "+r"(from));
#endif
  const Vector a = load(from);
  const Vector b = load(from + kWidth);
  const Vector c = load(from + 2 * kWidth);
  const Vector d = load(from + 3 * kWidth);
  kStore(to, a);
  kStore(to + kWidth, b);
  kStore(to + 2 * kWidth, c);
  kStore(to + 3 * kWidth, d);
}

// The first line and the last block may overlap what lies between them, which begins at a line of the
// destination.
inline void copy_forwards(std::byte* to, const std::byte* from, size_t bytes) {
  copy_line(to, from);
  size_t at = kLine - reinterpret_cast<uintptr_t>(to) % kLine;
  for (; at + kBlock <= bytes; at += kBlock) copy_block<store>(to + at, from + at);
  copy_block<store>(to + bytes - kBlock, from + bytes - kBlock);
}

inline void copy_backwards(std::byte* to, const std::byte* from, size_t bytes) {
  copy_line(to + bytes - kLine, from + bytes - kLine);
  size_t at = bytes - reinterpret_cast<uintptr_t>(to + bytes) % kLine;
  for (; at >= kBlock; at -= kBlock) copy_block<store>(to + at - kBlock, from + at - kBlock);
  copy_block<store>(to, from);
}

// Four pages side by side: the processor looks ahead within a page only, and in several at once. Measured on
// an Ice Lake with 16 MiB and more, this is a tenth (AVX-512) to a third (AVX2) faster than page by page.
void stream(void* destination, const void* source, size_t bytes) {
  constexpr size_t kPages = 4;
  auto* const to = static_cast<std::byte*>(destination);
  const auto* const from = static_cast<const std::byte*>(source);
  copy_line(to, from);
  size_t at = kLine - reinterpret_cast<uintptr_t>(to) % kLine;
  for (; at + kPages * kPage <= bytes; at += kPages * kPage) {
    for (size_t in_page = at; in_page < at + kPage; in_page += kBlock) {
      for (size_t page = 0; page < kPages; ++page)
        copy_block<store_past_caches>(to + in_page + page * kPage, from + in_page + page * kPage);
    }
  }
  for (; at + kBlock <= bytes; at += kBlock) copy_block<store_past_caches>(to + at, from + at);
  copy_block<store>(to + bytes - kBlock, from + bytes - kBlock);
#if defined(__x86_64__)
  _mm_sfence();  // what is published next comes after what was stored past the caches
#endif
}

// A load waits for an earlier store that is still on its way when the last twelve bits of their addresses are
// the same, whatever the others are. Where the destination lies shortly behind the source in this sense, that
// is every load of a loop forwards, and none of a loop backwards.
void copy(void* destination, const void* source, size_t bytes) {
  constexpr size_t kShortly = 256;
  if (bytes >= kLargeCopy) return stream(destination, source, bytes);
  auto* const to = static_cast<std::byte*>(destination);
  const auto* const from = static_cast<const std::byte*>(source);
  const size_t behind = (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPage;
  if (behind > 0 && behind < kShortly) {
    copy_backwards(to, from, bytes);
  } else {
    copy_forwards(to, from, bytes);
  }
}

}  // namespace
}  // namespace muster::detail
