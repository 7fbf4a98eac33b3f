#pragma once

// Where the blocks of a buffer are: its elements cut into blocks of equal size, to within one unit. Units of
// a cache line keep the blocks of different ranks apart.

#include <algorithm>
#include <cstddef>

namespace muster::detail {

class BlockLayout {
 public:
  BlockLayout(size_t elements, int blocks, size_t unit = 1)
      : elements_(elements),
        units_((elements + unit - 1) / unit),
        unit_(unit),
        blocks_(static_cast<size_t>(blocks)) {}

  /// The first element of a block; of the one past the last, the number of elements.
  size_t begin(int block) const {
    const auto b = static_cast<size_t>(block);
    return std::min((units_ / blocks_ * b + std::min(b, units_ % blocks_)) * unit_, elements_);
  }

 private:
  size_t elements_;
  size_t units_;
  size_t unit_;
  size_t blocks_;
};

}  // namespace muster::detail
