#include "muster/optim/range_update.h"

#include <algorithm>

#include "muster/base/convert.h"
#include "muster/base/error.h"

namespace muster::detail {
namespace {

// Elements that are summed and then used while they are in the first-level cache.
constexpr size_t kTile = size_t{4} * 1024;
constexpr size_t kMostSources = 257;

}  // namespace

RangeUpdate::RangeUpdate(const FlatLayout& layout, const UpdateRule& rule, const ModelBuffers& buffers)
    : layout_(layout), rule_(rule), buffers_(buffers) {}

std::byte* RangeUpdate::sum_of(const Range& range) const {
  return buffers_.sums + layout_.state_offset(range);
}

void RangeUpdate::add_up_sources(const Range& range, std::span<const WeightedSource> sources,
                                 bool accumulated, void* sum) const {
  const ParameterInfo& info = layout_[range.slice];
  const DType wide = info.state_dtype();
  const bool at_once = accumulated && info.dtype == wide;
  std::array<WeightedSource, kMostSources> parts{};
  size_t count = 0;
  MUSTER_CHECK(sources.size() < kMostSources);
  if (at_once) parts[count++] = {sum_of(range), 1};
  for (const auto& [data, weight] : sources)
    parts[count++] = {static_cast<const std::byte*>(data) + range.begin * size_of(info.dtype), weight};
  if (!accumulated || at_once) return add_up(info.dtype, std::span(parts).first(count), sum, range.count);
  // The sums are wider than the sources.
  alignas(64) std::array<float, kTile> tile;
  for (size_t at = 0; at < range.count; at += kTile) {
    const size_t size = std::min(kTile, range.count - at);
    auto* to = static_cast<std::byte*>(sum) + at * size_of(wide);
    WeightedSource so_far = {sum_of(range) + at * size_of(wide), 1};
    for (size_t i = 0; i < count; ++i) {
      const WeightedSource part = {static_cast<const std::byte*>(parts[i].data) + at * size_of(info.dtype),
                                   parts[i].weight};
      add_up(info.dtype, {&part, 1}, tile.data(), size);
      add_up(wide, std::array{so_far, WeightedSource{tile.data(), 1}}, to, size);
      so_far.data = to;
    }
    if (count == 0) add_up(wide, {&so_far, 1}, to, size);
  }
}

void RangeUpdate::adopt_parameters(const Range& range) const {
  const ParameterInfo& info = layout_[range.slice];
  if (!info.has_master()) return;
  convert(info.dtype, buffers_.parameters + layout_.offset(range), info.state_dtype(),
          buffers_.master + layout_.state_offset(range), range.count);
}

void RangeUpdate::reduce(const Range& range, std::span<const WeightedSource> sources,
                         bool accumulated) const {
  add_up_sources(range, sources, accumulated, sum_of(range));
}

double RangeUpdate::square(const Range& range) const {
  return sum_of_squares(layout_[range.slice].state_dtype(), sum_of(range), range.count);
}

bool RangeUpdate::is_finite(const Range& range) const {
  return all_finite(layout_[range.slice].state_dtype(), sum_of(range), range.count);
}

bool RangeUpdate::is_finite(const Range& range, const void* gradient) const {
  const DType dtype = layout_[range.slice].dtype;
  return all_finite(dtype, static_cast<const std::byte*>(gradient) + range.begin * size_of(dtype),
                    range.count);
}

UpdateRange RangeUpdate::range_of(const Range& range, const void* gradient) const {
  const ParameterInfo& info = layout_[range.slice];
  const size_t offset = layout_.state_offset(range);
  UpdateRange updated = {.dtype = info.state_dtype(), .gradient = gradient, .count = range.count};
  updated.parameter =
      info.has_master() ? buffers_.master + offset : buffers_.parameters + layout_.offset(range);
  for (size_t state = 0; state < rule_.states(); ++state)
    updated.states[state] = buffers_.states[state] + offset;
  return updated;
}

Norms RangeUpdate::measure(const Range& range, const UpdateNow& now) const {
  return rule_.measure(range_of(range, sum_of(range)), now);
}

void RangeUpdate::apply(const Range& range, const UpdateNow& now, const Norms& norms) const {
  update(range, sum_of(range), now, norms);
}

bool RangeUpdate::update(const Range& range, const void* gradient, const UpdateNow& now,
                         const Norms& norms) const {
  const UpdateRange updated = range_of(range, gradient);
  const bool finite = rule_.apply(updated, now, norms);
  const ParameterInfo& info = layout_[range.slice];
  if (info.has_master())
    convert(updated.dtype, updated.parameter, info.dtype, buffers_.parameters + layout_.offset(range),
            range.count);
  return finite;
}

bool RangeUpdate::reduce_and_apply(const Range& range, std::span<const WeightedSource> sources,
                                   const UpdateNow& now, bool accumulated) const {
  const ParameterInfo& info = layout_[range.slice];
  if (!accumulated && sources.size() == 1 && sources.front().weight == 1 &&
      info.dtype == info.state_dtype()) {
    const auto* gradient = static_cast<const std::byte*>(sources.front().data);
    return update(range, gradient + range.begin * size_of(info.dtype), now, {});
  }
  if (accumulated && sources.empty()) return update(range, sum_of(range), now, {});
  alignas(64) std::array<double, kTile> tile;  // or as many floats
  bool finite = true;
  for (size_t at = 0; at < range.count; at += kTile) {
    const Range piece = {range.slice, range.begin + at, std::min(kTile, range.count - at)};
    add_up_sources(piece, sources, accumulated, tile.data());
    finite = update(piece, tile.data(), now, {}) && finite;
  }
  return finite;
}

}  // namespace muster::detail
