#include "muster/ps/server/parameter_store.h"

#include <algorithm>
#include <cmath>

#include "muster/base/copy.h"
#include "muster/base/error.h"

namespace muster::detail {
namespace {

// A tile: so many elements of a chunk are summed and then used while they are in the first-level cache.
constexpr size_t kTile = size_t{4} * 1024;

// Below this many elements, waking another thread costs more than it saves.
constexpr size_t kWorthAPool = size_t{128} * 1024;

size_t elements_of(const std::vector<Slice>& slices) {
  size_t count = 0;
  for (const auto& slice : slices) count += slice.count;
  return count;
}

}  // namespace

ParameterStore::ParameterStore(const Options& options, StoreView& view)
    : options_(options),
      view_(view),
      slices_(options_.placement.slices(options_.server)),
      accumulated_(slices_.size(), false),
      updates_(slices_.size(), 0),
      pool_(elements_of(slices_) < kWorthAPool ? 1 : options_.threads) {
  const size_t extent = options_.placement.extent(options_.server);
  for (size_t i = 0; i < options_.rule->states(); ++i) state_[i] = std::make_unique<float[]>(extent);
}

void ParameterStore::initialise(const SliceData& parameters) {
  for (size_t i = 0; i < slices_.size(); ++i) {
    if (parameters[i] != nullptr)
      copy_bytes(view_.parameters() + slices_[i].offset, parameters[i], slices_[i].count * sizeof(float));
  }
}

float* ParameterStore::sums() {
  if (!sums_) sums_ = std::make_unique<float[]>(options_.placement.extent(options_.server));
  return sums_.get();
}

void ParameterStore::accumulate(const WeightedData& source) {
  float* sum = sums();
  for (size_t i = 0; i < slices_.size(); ++i) {
    if ((*source.data)[i] == nullptr) continue;
    float* mine = sum + slices_[i].offset;
    const std::array<WeightedSource, 2> both = {WeightedSource{mine, 1},
                                                WeightedSource{(*source.data)[i], source.weight}};
    add_up(DType::kFloat32, accumulated_[i] ? std::span(both) : std::span(both).last(1), mine,
           slices_[i].count);
    accumulated_[i] = true;
    if (options_.check_finite && !all_finite(DType::kFloat32, (*source.data)[i], slices_[i].count)) {
      not_finite_ = i;
      accumulated_nan_of_ = source.worker;
    }
  }
}

bool ParameterStore::touched(const Update& update, size_t slice) const {
  return accumulated_[slice] ||
         std::any_of(update.sources.begin(), update.sources.end(),
                     [&](const WeightedData& source) { return (*source.data)[slice] != nullptr; });
}

// What there is of a range, in the order in which it is added.
void ParameterStore::collect(const Update& update, const Range& range,
                             std::vector<WeightedSource>& sources) const {
  sources.clear();
  if (accumulated_[range.slice]) sources.push_back({sums_.get() + range.offset, 1});
  for (const auto& [data, weight, worker] : update.sources) {
    if ((*data)[range.slice] != nullptr) sources.push_back({(*data)[range.slice] + range.begin, weight});
  }
}

UpdateRange ParameterStore::range_of(const Range& range, const float* gradient) const {
  UpdateRange updated = {
      .parameter = view_.parameters() + range.offset, .gradient = gradient, .count = range.count};
  for (size_t i = 0; i < options_.rule->states(); ++i) updated.states[i] = state_[i].get() + range.offset;
  return updated;
}

UpdateNow ParameterStore::now_of(const Update& update, const Range& range) const {
  const auto& variable = options_.placement.variables()[slices_[range.slice].variable];
  return {.step = updates_[range.slice] + 1,
          .lr = update.lr * variable.group.lr_factor,
          .gradient_scale = update.gradient_scale / update.divisor,
          .adapt = variable.shape.size() > 1,
          .weight_decay = variable.group.weight_decay,
          .asynchronous = update.asynchronous};
}

void ParameterStore::update_range(const Range& range, const float* gradient, const UpdateNow& now) {
  const bool finite = options_.rule->apply(range_of(range, gradient), now);
  if (options_.check_finite && !finite) not_finite_ = range.slice;
}

void ParameterStore::apply_at_once(const Update& update, const Chunk& chunk) {
  alignas(64) std::array<float, kTile> sum;
  std::vector<WeightedSource> sources;
  std::vector<WeightedSource> parts;
  for (const Range& range : chunk) {
    collect(update, range, sources);
    if (sources.empty()) continue;
    const UpdateNow now = now_of(update, range);
    const bool as_it_is = sources.size() == 1 && sources.front().weight == 1;
    for (size_t at = 0; at < range.count; at += kTile) {
      const Range tile = {range.slice, range.begin + at, std::min(kTile, range.count - at),
                          range.offset + at};
      if (as_it_is) {
        update_range(tile, static_cast<const float*>(sources.front().data) + at, now);
        continue;
      }
      parts.clear();
      for (const auto& [data, weight] : sources)
        parts.push_back({static_cast<const float*>(data) + at, weight});
      add_up(DType::kFloat32, parts, sum.data(), tile.count);
      update_range(tile, sum.data(), now);
    }
  }
}

void ParameterStore::finish_chunk(const Update& update, size_t chunk,
                                  const std::function<void(size_t)>& done) const {
  view_.version(chunk).exchange(update.version);
  done(chunk);
}

void ParameterStore::add_up_chunk(const Update& update, size_t chunk) {
  std::vector<WeightedSource> sources;
  for (const Range& range : view_.chunks()[chunk]) {
    float* sum = sums_.get() + range.offset;
    collect(update, range, sources);
    add_up(DType::kFloat32, sources, sum, range.count);
    if (options_.clip_norm > 0) squares_[chunk] += sum_of_squares(DType::kFloat32, sum, range.count);
  }
}

void ParameterStore::measure_chunk(const Update& update, const Chunk& chunk) {
  for (const Range& range : chunk) {
    if (touched(update, range.slice))
      norms_[static_cast<size_t>(&range - view_.ranges().data())] =
          options_.rule->measure(range_of(range, sums_.get() + range.offset), now_of(update, range));
  }
}

void ParameterStore::apply_sums(const Update& update, const Chunk& chunk, const std::vector<Norms>& whole) {
  for (const Range& range : chunk) {
    const float* sum = sums_.get() + range.offset;
    if (touched(update, range.slice))
      options_.rule->apply(range_of(range, sum), now_of(update, range), whole[range.slice]);
    if (options_.check_finite && !all_finite(DType::kFloat32, sum, range.count)) not_finite_ = range.slice;
  }
}

// What depends on norms of the whole needs the sums first.
void ParameterStore::apply_in_passes(Update update, const std::function<void(size_t)>& done) {
  const auto& chunks = view_.chunks();
  sums();
  squares_.assign(chunks.size(), 0);
  norms_.assign(view_.ranges().size(), {});
  pool_.run(chunks.size(), [&](size_t i) { add_up_chunk(update, i); });
  if (options_.clip_norm > 0) {
    double square = 0;
    for (const double value : squares_) square += value;
    const double norm = std::sqrt(square) * std::abs(update.gradient_scale / update.divisor);
    update.gradient_scale *= clip_factor(norm, options_.clip_norm);
  }
  if (options_.rule->measures())
    pool_.run(chunks.size(), [&](size_t i) { measure_chunk(update, chunks[i]); });
  std::vector<Norms> whole(slices_.size());
  for (size_t i = 0; i < norms_.size(); ++i) whole[view_.ranges()[i].slice] += norms_[i];
  pool_.run(chunks.size(), [&](size_t i) {
    apply_sums(update, chunks[i], whole);
    finish_chunk(update, i, done);
  });
}

void ParameterStore::apply(const Update& update, const std::function<void(size_t chunk)>& done) {
  if (options_.clip_norm > 0 || options_.rule->measures()) {
    apply_in_passes(update, done);
  } else {
    pool_.run(view_.chunks().size(), [&](size_t i) {
      apply_at_once(update, view_.chunks()[i]);
      finish_chunk(update, i, done);
    });
  }
  for (size_t i = 0; i < slices_.size(); ++i) updates_[i] += touched(update, i) ? 1 : 0;
  accumulated_.assign(slices_.size(), false);
  if (const size_t slice = not_finite_; slice != SIZE_MAX) stop_at_nan(update, slice);
}

void ParameterStore::stop_at_nan(const Update& update, size_t slice) {
  int worker = accumulated_nan_of_;
  for (const auto& source : update.sources) {
    const float* data = (*source.data)[slice];
    if (data != nullptr && !all_finite(DType::kFloat32, data, slices_[slice].count)) worker = source.worker;
  }
  const std::string whose = worker < 0 ? "" : fmt::format(" from worker/{}", worker);
  raise<DataLoss>(
      "the gradient of {}{} is infinite or not a number, in update {} (--on-nan skip would leave it out)",
      options_.placement.variables()[slices_[slice].variable].name, whose, update.version);
}

}  // namespace muster::detail
