#include "muster/optim/shard_update.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "muster/base/copy.h"

namespace muster::detail {
namespace {

// The sources that have something of a slice.
void collect(const ShardUpdate::Update& update, size_t slice, std::vector<WeightedSource>& sources) {
  sources.clear();
  for (const auto& [gradients, weight] : update.sources) {
    if ((*gradients)[slice] != nullptr) sources.push_back({(*gradients)[slice], weight});
  }
}

}  // namespace

ShardUpdate::ShardUpdate(const Options& options)
    : options_(options),
      ranges_(options_.layout, *options_.rule, buffers_),
      accumulated_(layout().size(), false),
      updates_(layout().size(), 0) {
  buffers_.parameters = options_.parameters;
  for (size_t i = 0; i < options_.rule->states(); ++i) buffers_.states[i] = own(layout().state_bytes());
  if (layout().has_masters()) buffers_.master = own(layout().state_bytes());
}

void ShardUpdate::run_alone(size_t count, const std::function<void(size_t)>& work) {
  for (size_t i = 0; i < count; ++i) work(i);
}

std::byte* ShardUpdate::own(size_t bytes) {
  memory_.push_back(std::make_unique<std::byte[]>(bytes));
  return memory_.back().get();
}

void ShardUpdate::need_sums() {
  if (buffers_.sums == nullptr) buffers_.sums = own(layout().state_bytes());
}

void ShardUpdate::initialise(const SliceData& parameters) {
  for (size_t i = 0; i < layout().size(); ++i) {
    if (parameters[i] != nullptr)
      copy_bytes(options_.parameters + layout().offset(i), parameters[i], layout().bytes(i));
  }
  adopt_parameters();
}

const std::byte* ShardUpdate::values(size_t slice) const {
  return layout()[slice].has_master() ? buffers_.master + layout().state_offset(slice)
                                      : buffers_.parameters + layout().offset(slice);
}

void ShardUpdate::adopt_parameters() {
  for (const Range& range : layout().ranges()) ranges_.adopt_parameters(range);
}

bool ShardUpdate::accumulate(const Source& source) {
  need_sums();
  const Update update = {.sources = {source}};
  std::atomic<bool> finite = true;
  for_each_range(update, {}, [&](const Range& range, const std::vector<WeightedSource>& sources) {
    if (sources.empty()) return;
    if (!ranges_.is_finite(range, sources.front().data)) finite = false;
    ranges_.reduce(range, sources, accumulated_[range.slice]);
  });
  for (size_t i = 0; i < layout().size(); ++i) {
    if ((*source.gradients)[i] != nullptr) accumulated_[i] = true;
  }
  return finite;
}

bool ShardUpdate::touched(const Update& update, size_t slice) const {
  return accumulated_[slice] || std::ranges::any_of(update.sources, [&](const Source& source) {
           return (*source.gradients)[slice] != nullptr;
         });
}

UpdateNow ShardUpdate::now_of(const Update& update, size_t slice) const {
  const ParameterInfo& parameter = layout()[slice];
  return {.step = updates_[slice] + 1,
          .lr = update.lr * parameter.group.lr_factor,
          .gradient_scale = gradient_scale_,
          .adapt = parameter.shape.size() > 1,
          .weight_decay = parameter.group.weight_decay,
          .asynchronous = update.asynchronous};
}

// `work` gets each range, with what there is of it.
template <typename Work>
void ShardUpdate::for_each_range(const Update& update, const std::function<void(size_t)>& done,
                                 const Work& work) {
  options_.run(layout().chunks().size(), [&](size_t chunk) {
    std::vector<WeightedSource> sources;
    for (const Range& range : layout().ranges_of(layout().chunks()[chunk])) {
      collect(update, range.slice, sources);
      work(range, sources);
    }
    if (done) done(chunk);
  });
}

void ShardUpdate::apply_at_once(const Update& update, const std::function<void(size_t)>& done) {
  for_each_range(update, done, [&](const Range& range, const std::vector<WeightedSource>& sources) {
    const bool accumulated = accumulated_[range.slice];
    if (sources.empty() && !accumulated) return;
    if (!ranges_.reduce_and_apply(range, sources, now_of(update, range.slice), accumulated))
      not_finite_ = range.slice;
  });
}

ShardUpdate::Result ShardUpdate::apply_in_passes(const Update& update,
                                                 const std::function<void(size_t)>& done) {
  need_sums();
  const auto index_of = [this](const Range& range) {
    return static_cast<size_t>(&range - layout().ranges().data());
  };
  std::vector<double> squares(layout().ranges().size());
  for_each_range(update, {}, [&](const Range& range, const std::vector<WeightedSource>& sources) {
    if (!touched(update, range.slice)) return;
    ranges_.reduce(range, sources, accumulated_[range.slice]);
    if (options_.clip_norm > 0) squares[index_of(range)] = ranges_.square(range);
    if (!ranges_.is_finite(range)) not_finite_ = range.slice;
  });
  Result result;
  if (options_.clip_norm > 0) {
    double square = 0;
    for (const double value : squares) square += value;
    if (options_.add_up_shards) options_.add_up_shards({&square, 1});
    result.gradient_norm = std::sqrt(square) * std::abs(gradient_scale_);
    gradient_scale_ *= clip_factor(result.gradient_norm, options_.clip_norm);
  }
  const std::vector<Norms> norms = measure(update);
  const bool keeps = not_finite_ != SIZE_MAX;
  for_each_range(update, done, [&](const Range& range, const std::vector<WeightedSource>&) {
    if (!keeps && touched(update, range.slice))
      ranges_.apply(range, now_of(update, range.slice), norms[layout().slices()[range.slice].parameter]);
  });
  return result;
}

// Of whole parameters.
std::vector<Norms> ShardUpdate::measure(const Update& update) {
  std::vector<Norms> whole(layout().parameters().size());
  if (!options_.rule->measures()) return whole;
  std::vector<Norms> norms(layout().ranges().size());
  for_each_range(update, {}, [&](const Range& range, const std::vector<WeightedSource>&) {
    if (touched(update, range.slice))
      norms[static_cast<size_t>(&range - layout().ranges().data())] =
          ranges_.measure(range, now_of(update, range.slice));
  });
  for (size_t i = 0; i < norms.size(); ++i)
    whole[layout().slices()[layout().ranges()[i].slice].parameter] += norms[i];
  if (!options_.add_up_shards) return whole;
  std::vector<double> values;
  for (const Norms& norm : whole) {
    values.push_back(norm.parameter);
    values.push_back(norm.update);
  }
  options_.add_up_shards(values);
  for (size_t i = 0; i < whole.size(); ++i) whole[i] = {values[2 * i], values[2 * i + 1]};
  return whole;
}

ShardUpdate::Result ShardUpdate::apply(const Update& update, const std::function<void(size_t)>& done) {
  gradient_scale_ = update.gradient_scale / update.divisor;
  Result result;
  if (in_passes()) {
    result = apply_in_passes(update, done);
  } else {
    apply_at_once(update, done);
  }
  if (const size_t slice = not_finite_.exchange(SIZE_MAX); slice != SIZE_MAX) result.not_finite = slice;
  for (size_t i = 0; i < layout().size(); ++i)
    updates_[i] += touched(update, i) && !(in_passes() && result.not_finite) ? 1 : 0;
  accumulated_.assign(layout().size(), false);
  return result;
}

}  // namespace muster::detail
