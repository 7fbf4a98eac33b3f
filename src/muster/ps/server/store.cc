#include "muster/ps/server/store.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "muster/base/cpu.h"
#include "muster/base/error.h"
#include "muster/optim/gradients.h"
#include "muster/optim/rule_text.h"
#include "muster/optim/rules.h"

namespace muster::detail {
namespace {

constexpr int kMostThreads = 4;
constexpr size_t kWorthAPool = size_t{512} * 1024;  // bytes: waking another thread for fewer saves nothing

std::vector<ParameterInfo> without_groups(std::vector<ParameterInfo> variables) {
  for (auto& variable : variables) variable.group = {};
  return variables;
}

}  // namespace

Store::Store(const ModelSpec& spec, const FlatLayout& layout,
             std::function<void(std::span<double>)> add_up_shards)
    : layout_(layout),
      arena_(Arena::create()),
      view_(layout_, static_cast<std::byte*>(arena_->allocate(StoreView::bytes(layout_)))),
      pool_(layout_.bytes() < kWorthAPool ? 1 : std::min(kMostThreads, available_cores())),
      plain_(without_groups(layout_.parameters()), layout_.slices()) {
  const auto run = [this](size_t count, const auto& work) { pool_.run(count, work); };
  const auto is_local = [](const Phase& phase) { return phase.mode == Mode::kLocal; };
  const auto& phases = spec.policy.phases;
  if (!std::ranges::all_of(phases, is_local))
    gradients_.emplace(ShardUpdate::Options{.layout = layout_,
                                            .rule = parse_rule(spec.rule),
                                            .parameters = view_.parameters(),
                                            .clip_norm = spec.clip_norm,
                                            .run = run,
                                            .add_up_shards = std::move(add_up_shards)});
  if (std::ranges::any_of(phases, is_local))
    averages_.emplace(ShardUpdate::Options{.layout = plain_,
                                           .rule = sgd({.lr = 1, .momentum = spec.outer_momentum}),
                                           .parameters = view_.parameters(),
                                           .run = run});
  current_ = is_local(phases.front()) ? &*averages_ : &*gradients_;
}

ShardUpdate& Store::update_by(const Command& command) {
  auto& wanted = command.averages ? averages_ : gradients_;
  if (!wanted) throw DataLoss("the leader sent a command of a mode that this model is not trained in");
  if (&*wanted != std::exchange(current_, &*wanted)) wanted->adopt_parameters();
  return *wanted;
}

void Store::accumulate(const Command& command, const Contribution& contribution) {
  if (!update_by(command).accumulate(contribution.source)) not_finite_of_ = contribution.worker;
}

void Store::announce(int64_t version) {
  if (version != version_ + 1)
    raise<DataLoss>("update {} is to be made of version {}: some between were lost", version, version_);
  view_.announced().exchange(version);
}

void Store::apply(const Command& command, const std::vector<Contribution>& contributions,
                  const std::function<void()>& changed) {
  update_.sources.clear();
  for (const auto& contribution : contributions) update_.sources.push_back(contribution.source);
  update_.divisor = command.divisor;
  update_.lr = command.lr;
  update_.gradient_scale = command.gradient_scale;
  update_.asynchronous = command.asynchronous;
  const auto result = update_by(command).apply(update_, [&](size_t chunk) {
    view_.version(chunk).exchange(command.version);
    changed();
  });
  if (result.not_finite) raise_not_finite(command, contributions, *result.not_finite);
  version_ = command.version;
}

void Store::raise_not_finite(const Command& command, const std::vector<Contribution>& contributions,
                             size_t slice) const {
  int whose = not_finite_of_;
  for (const auto& [source, worker] : contributions) {
    const void* data = (*source.gradients)[slice];
    if (data != nullptr && !all_finite(layout_[slice].dtype, data, layout_.slices()[slice].count))
      whose = worker;
  }
  raise<DataLoss>(
      "the gradient of {}{} is infinite or not a number, in update {} (--on-nan skip would leave it out)",
      layout_[slice].name, whose < 0 ? "" : fmt::format(" from worker/{}", whose), command.version);
}

}  // namespace muster::detail
