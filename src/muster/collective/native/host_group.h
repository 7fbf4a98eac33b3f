#pragma once

// How the ranks of one host meet in shared memory: each keeps a HostBlock in its arena that the others read.
//
//   arrive   every operation begins with a card: what is called, on how many elements, and where the data is.
//            Small data is on the card itself. The cards of two successive operations have places of their
//            own, so that a rank may begin the next one while another still reads the last.
//   tick     inside an operation, "I have come this far": a counter that only grows. All ranks tick equally
//            often.
//
// One thread of each rank uses it at a time: the one that runs the rank's collective. Waiting spins, yields
// and then sleeps, and calls back to check for failures and the deadline.
//
// Of two ranks that wait for each other on one core while others are free, one moves: it takes that core out
// of the affinity of its thread, which makes the scheduler move it at once, and puts the core back before it
// goes on. Whoever changes the affinity of a thread while that is in a collective may find it undone.
//
// A card fits one cache line when the data is at most 32 bytes: such an operation costs one line from each
// peer. Those of a longer card, up to some 500 bytes, are fetched at the same time, and so cost little more.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "muster/collective/native/context.h"
#include "muster/collective/native/host_memory.h"
#include "muster/net/arena.h"
#include "muster/net/signal.h"

namespace muster {

constexpr size_t kCacheLine = 64;

/// Data up to this size travels on the card. Beyond it, copying twice costs more than meeting twice.
constexpr size_t kCardBytes = size_t{16} * 1024;

/// More ranks than this on one host do not share memory.
constexpr int kMostOnHost = 256;

struct alignas(128) Card {
  std::atomic<uint64_t> sequence{0};
  uint64_t call = 0;  // collective, dtype, op and root, packed
  uint64_t count = 0;
  uint64_t place = 0;  // the data's offset in the arena; 0: not in it
  std::array<std::byte, kCardBytes> data{};
};

/// Work on an operation that any rank may do for all: parts taken, and parts done.
struct alignas(128) Tally {
  std::atomic<uint32_t> taken{0};
  std::atomic<uint32_t> done{0};
};

struct HostBlock {
  Bell bell;
  alignas(64) std::atomic<int> cpu{-1};  // where the rank last ran
  alignas(64) std::atomic<uint64_t> ticks{0};
  std::atomic<uint32_t> failed{0};               // the rank has given up an operation: its data may be gone
  alignas(64) std::atomic<uint64_t> staging{0};  // offset of the staging buffer, once there is one
  std::array<Card, 2> cards;
  std::array<Tally, 2>
      tallies;  // of the host's first rank, for all: one for each of two successive operations

  /// Behind the block: the offsets of our pipes to the host's ranks, on two channels; 0 while there is none.
  static size_t bytes(int ranks) {
    return sizeof(HostBlock) + 2 * sizeof(uint64_t) * static_cast<size_t>(ranks);
  }
  std::atomic<uint64_t>& pipe(int channel, int ranks, int to) {
    return reinterpret_cast<std::atomic<uint64_t>*>(this + 1)[channel * ranks + to];
  }
};

/// One rank of the host, as the others see it.
struct HostPeer {
  int rank = 0;  // in the communicator
  std::shared_ptr<Arena> arena;
  HostBlock* block = nullptr;
};

class HostGroup {
 public:
  /// `peers` are all ranks of the host in their order, this one at `index`. Takes their blocks, ours among
  /// them, which are in HostMemory.
  HostGroup(HostMemory& memory, std::vector<HostPeer> peers, int index, int cores);
  ~HostGroup();
  HostGroup(const HostGroup&) = delete;
  HostGroup& operator=(const HostGroup&) = delete;

  int size() const { return static_cast<int>(peers_.size()); }
  int index() const { return index_; }
  const HostPeer& peer(int index) const { return peers_[static_cast<size_t>(index)]; }
  int index_of(int rank) const;
  Arena& arena() const { return *mine().arena; }

  /// Shows our card, with `bytes` of data on it, and waits for those of all. Throws a mismatch when the
  /// others called something else.
  void arrive(const Context& context, size_t place, const void* data, size_t bytes);

  /// The card of a peer, since the last arrive().
  const Card& card(int index) const { return peers_[static_cast<size_t>(index)].block->cards[sequence_ % 2]; }

  /// Shares out `parts` pieces of work among the ranks that are running: calls work(part) for those that fall
  /// to us, and returns when all are done. Once after an arrive().
  template <typename Work>
  void share_out(const Context& context, uint32_t parts, const Work& work);

  /// More ranks than cores: a rank that is waited for may not be running at all.
  bool crowded() const { return crowded_; }

  void tick();
  uint64_t ticks() const { return ticks_; }
  void wait_for_tick(const Context& context, int index, uint64_t tick);
  void wait_for_all(const Context& context, uint64_t tick);

  /// Our staging buffer, made when first asked for, and a peer's, which must have ticked since it has one.
  std::byte* staging(size_t bytes);
  std::byte* staging_of(int index) const;

 private:
  const HostPeer& mine() const { return peers_[static_cast<size_t>(index_)]; }
  void wake_others();
  template <typename Here>
  void wait_until_here(const Context& context, int first, int last, const Here& here);
  int note_cpu();

  // Throws what context.check() throws, and lets the others know before our caller frees what they read.
  template <typename Missing>
  void check(const Context& context, const Missing& missing);

  // What we have read is of no use when its owner had given up: throws.
  void check_whole(const Context& context) const;
  static void leave_core(int cpu);

  HostMemory& memory_;
  const std::vector<HostPeer> peers_;
  const int index_;
  const bool crowded_;
  const Patience patience_;
  const int spins_;
  int shared_waits_ = 0;  // how often we waited for a rank on our own core
  uint64_t sequence_ = 0;
  uint64_t ticks_ = 0;
  std::byte* staging_ = nullptr;
};

template <typename Work>
void HostGroup::share_out(const Context& context, uint32_t parts, const Work& work) {
  Tally& tally = peers_.front().block->tallies[sequence_ % 2];
  for (uint32_t part = tally.taken.fetch_add(1); part < parts; part = tally.taken.fetch_add(1)) {
    work(part);
    if (tally.done.fetch_add(1) + 1 == parts) wake_others();
  }
  wait_until(
      mine().block->bell, patience_, [&] { return tally.done.load(std::memory_order_acquire) == parts; },
      [&] { check(context, [] { return std::vector<int>(); }); });
  check_whole(context);
}

template <typename Missing>
void HostGroup::check(const Context& context, const Missing& missing) {
  try {
    context.check(missing);
  } catch (...) {
    mine().block->failed.exchange(1);
    throw;
  }
}

}  // namespace muster
