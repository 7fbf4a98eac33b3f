#include "muster/optim/flat_layout.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "muster/base/align.h"

namespace muster::detail {
namespace {

constexpr size_t kCacheLine = 64;  // BLAS and oneDNN like it

// Elements of a range: few enough that nobody waits long for the last one, enough that taking one costs
// nothing. Ranges share a chunk up to so many elements: a signal is then a small part of its work, and a
// reader that follows an update is still close behind it.
constexpr size_t kRange = size_t{32} * 1024;
constexpr size_t kSharedChunk = size_t{8} * 1024;

std::vector<Slice> whole(const std::vector<ParameterInfo>& parameters) {
  std::vector<Slice> slices;
  for (size_t i = 0; i < parameters.size(); ++i)
    slices.push_back({.parameter = i, .begin = 0, .count = parameters[i].count()});
  return slices;
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

FlatLayout::FlatLayout(const std::vector<ParameterInfo>& parameters)
    : FlatLayout(parameters, whole(parameters)) {}

FlatLayout::FlatLayout(std::vector<ParameterInfo> parameters, std::vector<Slice> slices)
    : parameters_(std::move(parameters)), slices_(std::move(slices)) {
  for (size_t i = 0; i < size(); ++i) {
    offsets_.push_back(bytes_);
    state_offsets_.push_back(state_bytes_);
    bytes_ += round_up(bytes(i), kCacheLine);
    state_bytes_ += round_up(slices_[i].count * size_of((*this)[i].state_dtype()), kCacheLine);
  }
  cut_into_chunks();
}

void FlatLayout::cut_into_chunks() {
  size_t elements = 0;  // of the last chunk
  for (size_t slice = 0; slice < size(); ++slice) {
    const size_t total = slices_[slice].count;
    for (size_t begin = 0; begin < total; begin += kRange) {
      const size_t count = std::min(kRange, total - begin);
      const bool joins = !ranges_.empty() && elements + count <= kSharedChunk &&
                         (*this)[ranges_.back().slice].state_dtype() == (*this)[slice].state_dtype();
      if (!joins) {
        chunks_.push_back({.first = ranges_.size()});
        elements = 0;
      }
      elements += count;
      ++chunks_.back().ranges;
      ranges_.push_back({.slice = slice, .begin = begin, .count = count});
    }
  }
}

size_t FlatLayout::offset(const Range& range) const {
  return offset(range.slice) + range.begin * size_of((*this)[range.slice].dtype);
}

size_t FlatLayout::state_offset(const Range& range) const {
  return state_offset(range.slice) + range.begin * size_of((*this)[range.slice].state_dtype());
}

bool FlatLayout::has_masters() const {
  return std::ranges::any_of(
      slices_, [this](const Slice& slice) { return parameters_[slice.parameter].has_master(); });
}

}  // namespace muster::detail
