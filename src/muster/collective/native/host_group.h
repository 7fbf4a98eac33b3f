#pragma once

// How the ranks of one host work together in shared memory: each keeps a RankState in its arena that the
// others read.
//
//   header slot    every operation begins with a header: what is called, on how many elements, and where the
//                  data is. Small data is in the slot itself. Two successive operations use different slots,
//                  so that a rank may begin the next one while another still reads the last.
//   phase counter  inside an operation, "I have come this far": a counter that only grows. All ranks advance
//                  it equally often.
//
// One thread of each rank uses it at a time: the one that runs the rank's collective. Waiting spins, yields
// and then sleeps, and calls back to check for errors and the deadline.
//
// Of two ranks that wait for each other on one core while others are free, one moves: it takes that core out
// of the affinity of its thread, which makes the scheduler move it at once, and puts the core back before it
// goes on. Whoever changes the affinity of a thread while that is in a collective may find it undone.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "muster/collective/native/host_memory.h"
#include "muster/collective/native/operation_context.h"
#include "muster/collective/native/rank_state.h"
#include "muster/shm/arena.h"
#include "muster/shm/futex.h"

namespace muster::detail {

/// More ranks than this on one host do not share memory.
constexpr int kMostOnHost = 256;

/// One rank of the host, as the others see it.
struct HostPeer {
  int rank = 0;  // in the communicator
  std::shared_ptr<Arena> arena;
  RankState* state = nullptr;
};

class HostGroup {
 public:
  /// `peers` are all ranks of the host in their order, this one at `index`. Takes their states, ours among
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

  /// Publishes our header, with `bytes` of data in its slot, and waits for those of all. Throws a mismatch
  /// when the others called something else. `offset` is that of the data in our arena, 0 when it is not
  /// there.
  void begin(const OperationContext& context, size_t offset, const void* data, size_t bytes);

  /// The header of a peer, since the last begin().
  const HeaderSlot& header(int index) const {
    return peers_[static_cast<size_t>(index)].state->headers[sequence_ % 2];
  }

  /// Shares the work on `blocks` blocks among the ranks that are running: calls work(block) for those that we
  /// have claimed, and returns when all are done. Once after a begin().
  template <typename Work>
  void share_work(const OperationContext& context, uint32_t blocks, const Work& work);

  /// More ranks than cores: a rank that is waited for may not be running at all.
  bool oversubscribed() const { return oversubscribed_; }
  int cores() const { return cores_; }  ///< That the ranks may run on, all together.

  void advance_phase();
  uint64_t phase() const { return phase_; }
  void wait_for_phase(const OperationContext& context, int index, uint64_t phase);
  void wait_for_all(const OperationContext& context, uint64_t phase);

  /// Our staging buffer, made when first asked for, and a peer's, which must have advanced its phase since it
  /// has one.
  std::byte* staging(size_t bytes);
  std::byte* staging_of(int index) const;

 private:
  const HostPeer& mine() const { return peers_[static_cast<size_t>(index_)]; }
  void wake_others();
  template <typename Here>
  void wait_until_here(const OperationContext& context, int first, int last, const Here& here);
  int note_cpu();

  // Throws what context.check() throws, and lets the others know before our caller frees what they read.
  template <typename Missing>
  void check(const OperationContext& context, const Missing& missing);

  // What we have read is of no use when its owner had given up: throws.
  void check_whole(const OperationContext& context) const;
  static void leave_core(int cpu);

  HostMemory& memory_;
  const std::vector<HostPeer> peers_;
  const int index_;
  const int cores_;
  const bool oversubscribed_;
  const SpinPolicy spin_policy_;
  const int spins_;
  int shared_waits_ = 0;  // how often we waited for a rank on our own core
  uint64_t sequence_ = 0;
  uint64_t phase_ = 0;
  std::byte* staging_ = nullptr;
};

template <typename Work>
void HostGroup::share_work(const OperationContext& context, uint32_t blocks, const Work& work) {
  WorkCounter& counter = peers_.front().state->work_counters[sequence_ % 2];
  while (const auto block = counter.claim(blocks)) {
    work(static_cast<uint32_t>(*block));
    if (counter.finish(blocks)) wake_others();
  }
  wait_until(
      mine().state->doorbell, spin_policy_, [&] { return counter.is_done(blocks); },
      [&] { check(context, [] { return std::vector<int>(); }); });
  check_whole(context);
}

template <typename Missing>
void HostGroup::check(const OperationContext& context, const Missing& missing) {
  try {
    context.check(missing);
  } catch (...) {
    mine().state->failed.exchange(1);
    throw;
  }
}

}  // namespace muster::detail
