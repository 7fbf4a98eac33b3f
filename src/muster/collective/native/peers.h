#pragma once

#include <cstdint>
#include <vector>

#include "muster/deadline.h"

namespace muster::detail {

/// What a rank knows of the others beside an operation.
class Peers {
 public:
  virtual ~Peers() = default;

  /// A rank that has left by its own will, half a second ago: what it did in shared memory before was seen by
  /// whoever looks.
  virtual bool given_up(int rank) const = 0;

  /// The same, just now.
  virtual bool left(int rank) const = 0;

  /// Waits until it is known that this rank has left or died, or that the group has failed; at most to the
  /// deadline.
  virtual void wait_gone(int rank, Deadline deadline) = 0;

  /// Asks all, and gives those who are not in the collective of this number yet, or do not answer.
  virtual std::vector<int> absent(uint64_t number) = 0;
};

}  // namespace muster::detail
