#pragma once

// How the ranks of one host meet in shared memory: each keeps a HostBlock in its arena that the others read.
//
//   arrive   every operation begins with a card: what is called, on how many elements, and where the data is.
//            Small data is on the card itself. The cards of two successive operations have places of their
//            own, so that a rank may begin the next one while another still reads the last.
//   tick     inside an operation, "I have come this far": a counter that only grows. All ranks tick equally
//   often.
//
// A card fits one cache line when the data is at most 32 bytes: such an operation costs one line from each
// peer.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "muster/collective/native/context.h"
#include "muster/net/arena.h"
#include "muster/net/signal.h"

namespace muster {

/// Data up to this size travels on the card. Beyond it, copying twice costs more than meeting twice.
constexpr size_t kCardBytes = 16 * 1024;

struct alignas(128) Card {
  std::atomic<uint64_t> sequence{0};
  uint64_t call = 0;  // collective, dtype, op and root, packed
  uint64_t count = 0;
  uint64_t place = 0;  // the data's offset in the arena; 0: not in it
  std::array<std::byte, kCardBytes> data{};
};

struct HostBlock {
  Bell bell;
  alignas(64) std::atomic<uint64_t> ticks{0};
  alignas(64) std::atomic<uint64_t> staging{0};  // offset of the staging buffer, once there is one
  std::array<Card, 2> cards;

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
  /// `peers` are all ranks of the host in their order, this one at `index`.
  HostGroup(std::vector<HostPeer> peers, int index, Patience patience);

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
  void wait_until_here(const Context& context, const Here& here);

  const std::vector<HostPeer> peers_;
  const int index_;
  const Patience patience_;
  uint64_t sequence_ = 0;
  uint64_t ticks_ = 0;
  std::byte* staging_ = nullptr;
};

}  // namespace muster
