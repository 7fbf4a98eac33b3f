#include "muster/train/buckets.h"

namespace muster::detail {

Buckets::Buckets(const FlatLayout& layout, size_t bytes) {
  for (size_t chunk = 0; chunk < layout.chunks().size(); ++chunk) {
    const auto ranges = layout.ranges_of(layout.chunks()[chunk]);
    const DType dtype = layout[ranges.front().slice].state_dtype();
    const size_t offset = layout.state_offset(ranges.front());
    const size_t end = layout.state_offset(ranges.back()) + ranges.back().count * size_of(dtype);
    if (buckets_.empty() || buckets_.back().dtype != dtype ||
        buckets_.back().count * size_of(dtype) >= bytes) {
      buckets_.push_back({.first_chunk = chunk, .offset = offset, .dtype = dtype});
    }
    Bucket& bucket = buckets_.back();
    bucket.chunks += 1;
    bucket.count = (end - bucket.offset) / size_of(dtype);
    bucket_of_.push_back(buckets_.size() - 1);
  }
}

}  // namespace muster::detail
