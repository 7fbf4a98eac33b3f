#include "muster/base/copy.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

constexpr size_t kPage = 4096;
constexpr int kGuard = 0xa5;

using Copy = void (*)(void* destination, const void* source, size_t bytes);

struct NamedCopy {
  const char* name;
  Copy copy;
  size_t smallest;
};

// The two functions, and the loops of every build that this machine can run.
std::vector<NamedCopy> all_copies() {
  std::vector<NamedCopy> copies = {{"copy_bytes", copy_bytes, 0}, {"stream_bytes", stream_bytes, 0}};
  for (const auto set : {KernelSet::kPortable, KernelSet::kAvx2, KernelSet::kAvx512}) {
    if (const auto* kernels = copy_kernels_of(set)) {
      copies.push_back({kernels->name, kernels->copy, kSmallCopy});
      copies.push_back({kernels->name, kernels->stream, kSmallCopy});
    }
  }
  return copies;
}

std::vector<std::byte> random_bytes_of(size_t size) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(size);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

// Whole pages between two that nobody may touch, so that what reads or writes beyond them dies.
class GuardedPages {
 public:
  explicit GuardedPages(size_t pages) : bytes_(pages * kPage) {
    void* all = mmap(nullptr, bytes_ + 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    data_ = static_cast<std::byte*>(all) + kPage;
    EXPECT_EQ(mprotect(all, kPage, PROT_NONE), 0);
    EXPECT_EQ(mprotect(data_ + bytes_, kPage, PROT_NONE), 0);
  }
  ~GuardedPages() { munmap(data_ - kPage, bytes_ + 2 * kPage); }
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;

  std::byte* begin() const { return data_; }
  std::byte* end() const { return data_ + bytes_; }
  size_t size() const { return bytes_; }

 private:
  size_t bytes_;
  std::byte* data_ = nullptr;
};

// Each is the same as the next, and the first is a guard. By library functions throughout: under a sanitizer
// a loop over all these bytes would take minutes.
bool are_guards(const std::byte* begin, const std::byte* end) {
  if (begin == end) return true;
  return *begin == std::byte{kGuard} &&
         std::memcmp(begin, begin + 1, static_cast<size_t>(end - begin) - 1) == 0;
}

// Copies, and says whether the bytes are there and those around them are as they were.
bool copies_exactly(Copy copy, const GuardedPages& to, size_t at, const std::byte* from, size_t bytes) {
  std::memset(to.begin(), kGuard, to.size());
  copy(to.begin() + at, from, bytes);
  return are_guards(to.begin(), to.begin() + at) && std::memcmp(from, to.begin() + at, bytes) == 0 &&
         are_guards(to.begin() + at + bytes, to.end());
}

TEST(Copy, CopiesFromAnyOffsetToAnyOffsetAndNothingMore) {
  const GuardedPages source(3);
  const GuardedPages destination(3);
  const auto bytes = random_bytes_of(source.size());
  std::copy(bytes.begin(), bytes.end(), source.begin());
  for (const auto& [name, copy, smallest] : all_copies()) {
    for (size_t from = 0; from <= 64; ++from) {
      for (size_t to = 0; to <= 64; ++to) {
        for (const size_t size : {size_t{511}, size_t{512}, size_t{1000}, kPage}) {
          if (size < smallest) continue;
          ASSERT_TRUE(copies_exactly(copy, destination, to, source.begin() + from, size))
              << name << ": " << size << " bytes from offset " << from << " to " << to;
        }
      }
    }
  }
}

TEST(Copy, CopiesAnyNumberOfBytes) {
  const GuardedPages source(3);
  const GuardedPages destination(3);
  const auto bytes = random_bytes_of(source.size());
  std::copy(bytes.begin(), bytes.end(), source.begin());
  for (const auto& [name, copy, smallest] : all_copies()) {
    for (size_t size = smallest; size <= 2 * kPage + 300; size = size < 1200 ? size + 1 : size + 37) {
      for (const size_t to : {0U, 1U, 16U, 63U, 200U}) {
        ASSERT_TRUE(copies_exactly(copy, destination, to, source.begin(), size))
            << name << ": " << size << " bytes to offset " << to;
      }
    }
  }
}

TEST(Copy, TouchesNothingBeyondThePagesOfEitherSide) {
  const GuardedPages source(3);
  const GuardedPages destination(3);
  const auto bytes = random_bytes_of(source.size());
  std::copy(bytes.begin(), bytes.end(), source.begin());
  for (const auto& [name, copy, smallest] : all_copies()) {
    for (const size_t size : {size_t{1}, size_t{15}, size_t{64}, size_t{512}, size_t{577}, kPage,
                              2 * kPage - 1, 2 * kPage + 1, 3 * kPage}) {
      if (size < smallest) continue;
      const size_t room = destination.size() - size;
      ASSERT_TRUE(copies_exactly(copy, destination, 0, source.begin(), size)) << name << ": " << size;
      ASSERT_TRUE(copies_exactly(copy, destination, room, source.end() - size, size)) << name << ": " << size;
      ASSERT_TRUE(copies_exactly(copy, destination, 0, source.end() - size, size)) << name << ": " << size;
      ASSERT_TRUE(copies_exactly(copy, destination, room, source.begin(), size)) << name << ": " << size;
    }
  }
}

TEST(Copy, CopiesWhatIsLargerThanTheCaches) {
  constexpr size_t kBytes = (size_t{24} << 20) + 77;
  constexpr size_t kPages = kBytes / kPage + 2;
  const GuardedPages source(kPages);
  const GuardedPages destination(kPages);
  const auto pattern = random_bytes_of(kPage + 1);
  for (size_t at = 0; at < source.size(); at += pattern.size())
    std::copy_n(pattern.begin(), std::min(pattern.size(), source.size() - at), source.begin() + at);
  for (const auto& [name, copy, smallest] : all_copies()) {
    for (const size_t to : {0U, 16U, 4000U})
      ASSERT_TRUE(copies_exactly(copy, destination, to, source.begin() + 3, kBytes)) << name << " to " << to;
  }
}

TEST(Copy, OfNothingNeedsNoMemory) {
  copy_bytes(nullptr, nullptr, 0);
  stream_bytes(nullptr, nullptr, 0);
}

}  // namespace
}  // namespace muster::detail
