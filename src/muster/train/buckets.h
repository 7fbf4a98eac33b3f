#pragma once

// Buckets: runs of chunks of a layout whose sums of gradients travel between hosts at once.

#include <cstddef>
#include <vector>

#include "muster/optim/flat_layout.h"

namespace muster::detail {

class Buckets {
 public:
  struct Bucket {
    size_t first_chunk = 0;
    size_t chunks = 0;
    size_t offset = 0;  ///< in the bytes of a state buffer
    size_t count = 0;   ///< elements, with the gaps between parameters
    DType dtype = DType::kFloat32;
  };

  /// Of about so many bytes: they end with a chunk.
  Buckets(const FlatLayout& layout, size_t bytes);

  size_t size() const { return buckets_.size(); }
  const Bucket& operator[](size_t bucket) const { return buckets_[bucket]; }

  /// The bucket of a chunk.
  size_t of(size_t chunk) const { return bucket_of_[chunk]; }

 private:
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;
};

}  // namespace muster::detail
