#include "muster/train/chunk_update.h"

#include <algorithm>

#include "muster/base/convert.h"
#include "muster/base/error.h"

namespace muster::detail {
namespace {

// Elements that are summed and then used while they are in the first-level cache.
constexpr size_t kTile = size_t{4} * 1024;
constexpr size_t kMostSources = 256;

}  // namespace

ChunkUpdate::ChunkUpdate(const ParameterLayout& layout, const UpdateRule& rule, const ModelBuffers& buffers)
    : layout_(layout), rule_(rule), buffers_(buffers) {}

std::byte* ChunkUpdate::sum_of(const Chunk& chunk) const {
  const DType dtype = layout_[chunk.parameter].state_dtype();
  return buffers_.sums + layout_.state_offset(chunk.parameter) + chunk.begin * size_of(dtype);
}

void ChunkUpdate::add_up_piece(const Chunk& chunk, std::span<const WeightedSource> sources, void* sum) const {
  const DType dtype = layout_[chunk.parameter].dtype;
  std::array<WeightedSource, kMostSources> pieces{};
  MUSTER_CHECK(sources.size() <= kMostSources);
  for (size_t i = 0; i < sources.size(); ++i) {
    pieces[i] = {static_cast<const std::byte*>(sources[i].data) + chunk.begin * size_of(dtype),
                 sources[i].weight};
  }
  add_up(dtype, std::span(pieces).first(sources.size()), sum, chunk.count);
}

void ChunkUpdate::reduce(const Chunk& chunk, std::span<const WeightedSource> sources) const {
  add_up_piece(chunk, sources, sum_of(chunk));
}

double ChunkUpdate::square(const Chunk& chunk) const {
  return sum_of_squares(layout_[chunk.parameter].state_dtype(), sum_of(chunk), chunk.count);
}

bool ChunkUpdate::is_finite(const Chunk& chunk) const {
  return all_finite(layout_[chunk.parameter].state_dtype(), sum_of(chunk), chunk.count);
}

UpdateRange ChunkUpdate::range_of(const Chunk& chunk, const void* gradient) const {
  const ParameterInfo& info = layout_[chunk.parameter];
  const DType dtype = info.state_dtype();
  const size_t offset = layout_.state_offset(chunk.parameter) + chunk.begin * size_of(dtype);
  UpdateRange range = {.dtype = dtype, .gradient = gradient, .count = chunk.count};
  range.parameter = info.has_master() ? buffers_.master + offset
                                      : buffers_.parameters + layout_.offset(chunk.parameter) +
                                            chunk.begin * size_of(info.dtype);
  for (size_t state = 0; state < rule_.states(); ++state)
    range.states[state] = buffers_.states[state] + offset;
  return range;
}

Norms ChunkUpdate::measure(const Chunk& chunk, const UpdateNow& now) const {
  return rule_.measure(range_of(chunk, sum_of(chunk)), now);
}

void ChunkUpdate::apply(const Chunk& chunk, const UpdateNow& now, const Norms& norms) const {
  apply_range(chunk, sum_of(chunk), now, norms);
}

bool ChunkUpdate::apply_range(const Chunk& chunk, const void* gradient, const UpdateNow& now,
                              const Norms& norms) const {
  const UpdateRange range = range_of(chunk, gradient);
  const bool finite = rule_.apply(range, now, norms);
  const ParameterInfo& info = layout_[chunk.parameter];
  if (!info.has_master()) return finite;
  convert(range.dtype, range.parameter, info.dtype,
          buffers_.parameters + layout_.offset(chunk.parameter) + chunk.begin * size_of(info.dtype),
          chunk.count);
  return finite;
}

bool ChunkUpdate::reduce_and_apply(const Chunk& chunk, std::span<const WeightedSource> sources,
                                   const UpdateNow& now) const {
  const ParameterInfo& info = layout_[chunk.parameter];
  if (sources.size() == 1 && sources.front().weight == 1 && info.dtype == info.state_dtype()) {
    const auto* gradient = static_cast<const std::byte*>(sources.front().data);
    return apply_range(chunk, gradient + chunk.begin * size_of(info.dtype), now, {});
  }
  alignas(64) std::array<double, kTile> tile;  // or as many floats
  bool finite = true;
  for (size_t at = 0; at < chunk.count; at += kTile) {
    const Chunk piece = {chunk.parameter, chunk.begin + at, std::min(kTile, chunk.count - at), chunk.bucket};
    add_up_piece(piece, sources, tile.data());
    finite = apply_range(piece, tile.data(), now, {}) && finite;
  }
  return finite;
}

}  // namespace muster::detail
