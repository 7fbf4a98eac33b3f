#include "muster/train/parameter_layout.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace muster::detail {
namespace {

constexpr size_t kLine = 64;  // parameters begin on cache lines: BLAS and oneDNN like it

// Elements. Small enough that nobody waits long for the last one, large enough that taking one costs nothing.
constexpr size_t kChunk = size_t{32} * 1024;

size_t round_up(size_t value) {
  return (value + kLine - 1) / kLine * kLine;
}

}  // namespace

size_t ParameterInfo::count() const {
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  return count;
}

std::string ParameterInfo::to_string() const {
  return fmt::format("{} {} [{}]", name, name_of(dtype), fmt::join(shape, ", "));
}

ParameterLayout::ParameterLayout(std::vector<ParameterInfo> parameters, size_t bucket_bytes)
    : parameters_(std::move(parameters)) {
  for (size_t i = 0; i < size(); ++i) {
    const ParameterInfo& info = parameters_[i];
    offsets_.push_back(bytes_);
    state_offsets_.push_back(state_bytes_);
    add_chunks(i, bucket_bytes);
    bytes_ += round_up(info.count() * size_of(info.dtype));
    state_bytes_ += round_up(info.count() * size_of(info.state_dtype()));
  }
}

void ParameterLayout::add_chunks(size_t parameter, size_t bucket_bytes) {
  const ParameterInfo& info = parameters_[parameter];
  const DType dtype = info.state_dtype();
  for (size_t begin = 0; begin < info.count(); begin += kChunk) {
    const size_t count = std::min(kChunk, info.count() - begin);
    const size_t offset = state_offsets_[parameter] + begin * size_of(dtype);
    if (buckets_.empty() || buckets_.back().dtype != dtype ||
        buckets_.back().count * size_of(dtype) >= bucket_bytes) {
      buckets_.push_back({.first_chunk = chunks_.size(), .offset = offset, .dtype = dtype});
    }
    Bucket& bucket = buckets_.back();
    bucket.chunks += 1;
    bucket.count = (offset - bucket.offset) / size_of(dtype) + count;
    chunks_.push_back({parameter, begin, count, buckets_.size() - 1});
  }
}

}  // namespace muster::detail
