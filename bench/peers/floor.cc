// The floor: what an all-reduce of processes on one machine costs when nothing but the memory is in the way.
//
//   peer_floor DIR RANKS
//
// The ranks are forks of one process and see each other's buffers in one shared mapping. Each reduces its
// n-th of the buffer straight from all ranks' memory into its own, then copies the other blocks from their
// owners. There is no other copy, no message and no system call but sched_yield when a rank waits long, or
// when there are more ranks than cores.

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "bench/peers/harness.h"

namespace muster::detail::bench {
namespace {

constexpr size_t kLargestBuffer = size_t{4} << 30;  // address space only: pages come when they are touched
constexpr size_t kPage = 4096;
constexpr size_t kSegment = 4096;  // elements: the sum stays in the first-level cache while ranks are added
constexpr int kSpins = 100;        // some microseconds: two ranks may find themselves on one core for a while

class SpinBarrier {
 public:
  SpinBarrier(int ranks, int spins) : ranks_(ranks), spins_(spins) {}

  void wait() {
    const int generation = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_) {
      arrived_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
      return;
    }
    for (int spin = 0; generation_.load(std::memory_order_acquire) == generation; ++spin) {
      if (spin < spins_)
        __builtin_ia32_pause();
      else
        sched_yield();
    }
  }

 private:
  alignas(64) std::atomic<int> arrived_ = 0;
  alignas(64) std::atomic<int> generation_ = 0;
  const int ranks_;
  const int spins_;
};

/// Made before the fork; a page for the barrier, then each rank's buffer.
class SharedMemory {
 public:
  SharedMemory(int ranks, int spins) {
    const size_t size = kPage + static_cast<size_t>(ranks) * kLargestBuffer;
    memory_ = static_cast<std::byte*>(
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (memory_ == MAP_FAILED) throw std::runtime_error("no shared memory");
    barrier_ = new (memory_) SpinBarrier(ranks, spins);
  }

  SpinBarrier& barrier() const { return *barrier_; }
  float* buffer(int rank) const {
    return reinterpret_cast<float*>(memory_ + kPage + static_cast<size_t>(rank) * kLargestBuffer);
  }

 private:
  std::byte* memory_ = nullptr;
  SpinBarrier* barrier_ = nullptr;
};

class Floor : public Subject {
 public:
  Floor(const SharedMemory& memory, int rank, int size) : memory_(memory), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Buffers prepare(Collective collective, size_t bytes) override {
    if (collective != Collective::kAllReduce) throw NotOffered("the floor is that of allreduce");
    if (bytes > kLargestBuffer) throw NotOffered("the floor's buffers are of at most 4 GiB");
    count_ = shape_of(collective, bytes, size_).in;
    const std::span<float> buffer(memory_.buffer(rank_), count_);
    return {.in = buffer, .out = buffer};
  }

  void run() override {
    reduce_own_block();
    barrier();
    float* mine = memory_.buffer(rank_);
    for (int step = 1; step < size_; ++step) {
      const int owner = (rank_ + step) % size_;
      const size_t begin = block_begin(owner);
      std::memcpy(mine + begin, memory_.buffer(owner) + begin,
                  (block_begin(owner + 1) - begin) * sizeof(float));
    }
    barrier();
  }

  void barrier() override { memory_.barrier().wait(); }

 private:
  size_t block_begin(int block) const {
    return count_ * static_cast<size_t>(block) / static_cast<size_t>(size_);
  }

  void reduce_own_block() const {
    const size_t end = block_begin(rank_ + 1);
    for (size_t begin = block_begin(rank_); begin < end; begin += kSegment) {
      const size_t count = std::min(kSegment, end - begin);
      float* __restrict sum = memory_.buffer(rank_) + begin;
      for (int step = 1; step < size_; ++step) {
        const float* __restrict other = memory_.buffer((rank_ + step) % size_) + begin;
        for (size_t i = 0; i < count; ++i) sum[i] += other[i];
      }
    }
  }

  const SharedMemory& memory_;
  const int rank_;
  const int size_;
  size_t count_ = 0;
};

int available_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

int run_ranks(const std::string& directory, int ranks) {
  const SharedMemory memory(ranks, ranks > available_cores() ? 0 : kSpins);
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) throw std::runtime_error("fork failed");
    if (pid > 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Floor subject(memory, rank, ranks);
    serve(subject, directory);
    return 0;
  }
  for (int status = 0; wait(&status) > 0;) {
    if (status != 0) return 1;  // the other ranks die with this process
  }
  return 0;
}

}  // namespace
}  // namespace muster::detail::bench

int main(int argc, char** argv) {
  const int ranks = argc == 3 ? std::atoi(argv[2]) : 0;
  if (ranks < 1) {
    std::fputs("usage: peer_floor DIR RANKS\n", stderr);
    return 2;
  }
  try {
    return muster::detail::bench::run_ranks(argv[1], ranks);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "peer_floor: %s\n", error.what());
    return 1;
  }
}
