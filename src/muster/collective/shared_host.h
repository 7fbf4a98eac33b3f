#pragma once

// The memory that the ranks of one host have in common, for what is built on it beside the collectives: a
// rank shows the others where its data is, or all use the same.
//
//   SharedHost& host = comm.host();
//   auto counters = host.share(sizeof(Counters));          // the same memory for all ranks of the host
//   const uint64_t offset = host.offset_of(data, bytes);   // of memory from comm.allocate(); goes to a peer
//   const void* theirs = host.at(2, offset);               // in the peer: what rank 2 meant
//
// Where an engine has no shared memory, every rank is a host of its own.
//
// The communicator owns it. share() is a collective of the communicator, and blocks as one; what it gives may
// outlive both. The rest may be called by any thread and does not block.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace muster {
class Communicator;
}

namespace muster::detail {

class SharedHost {
 public:
  virtual ~SharedHost() = default;

  /// The ranks of the communicator that are on this host, in their order, this one among them.
  const std::vector<int>& ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int index() const { return index_; }           ///< Of this rank among them.
  bool is_first() const { return index_ == 0; }  ///< The first has the host's common duties.
  int cores() const { return cores_; }           ///< That they may run on, all together.

  /// Zeroed memory that is the same for all ranks of the host; freed when all have let go of it. Called by
  /// all ranks of the communicator, in the order of its operations. Aligned to two cache lines.
  virtual std::shared_ptr<void> share(size_t bytes) = 0;

  /// Where memory of this rank's is, as an offset that its peers understand; 0 when they can't reach it.
  virtual uint64_t offset_of(const void* data, size_t bytes) const = 0;

  /// What the host's rank of this index has there.
  virtual void* at(int index, uint64_t offset) const = 0;

  /// Throws what has broken the group, and PeerLost when a rank that is waited for has left it.
  virtual void check(const std::string& during, const std::vector<int>& waited_for) const = 0;

 protected:
  SharedHost(std::vector<int> ranks, int index, int cores)
      : ranks_(std::move(ranks)), index_(index), cores_(cores) {}

 private:
  const std::vector<int> ranks_;
  const int index_;
  const int cores_;
};

}  // namespace muster::detail
