#include "muster/train/parameter_groups.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/ranges.h>

#include "muster/base/error.h"
#include "muster/train/flat_model.h"

namespace muster::detail {
namespace {

bool is_rate(const std::optional<double>& value) {
  return !value || (*value >= 0 && std::isfinite(*value));
}

bool is_like(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(
      patterns, [&](const auto& pattern) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
}

}  // namespace

ParameterGroups::ParameterGroups(torch::nn::Module& module, std::vector<ParameterGroup> groups, double lr)
    : module_(module), groups_(std::move(groups)), lr_(lr) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    const ParameterGroup& group = groups_[i];
    if (!is_rate(group.lr) || !is_rate(group.weight_decay))
      raise<InvalidArgument>(
          "TrainerOptions::groups[{}] has a rate or a weight decay that is negative or not finite", i);
    if (group.lr && lr_ == 0)
      raise<InvalidArgument>("TrainerOptions::groups[{}] has a rate of its own, but the optimizer's is 0", i);
    check_members(i);
    const auto parameters = module_.parameters();
    if (std::ranges::none_of(parameters, [&](const auto& one) { return group_of(one) == &group; }))
      raise<InvalidArgument>(
          "TrainerOptions::groups[{}] has no parameter of the module that no earlier group has{}", i,
          group.names.empty() ? "" : fmt::format("; its names are {}", fmt::join(group.names, ", ")));
  }
}

// A name that is misspelt would leave its parameter with the rest of the model, and nobody would notice.
void ParameterGroups::check_members(size_t i) const {
  const auto named = module_.named_parameters();
  const auto names = named.keys();
  for (const auto& pattern : groups_[i].names) {
    if (std::ranges::none_of(names, [&](const auto& name) { return is_like({pattern}, name); }))
      raise<InvalidArgument>(
          "TrainerOptions::groups[{}] names '{}', but no parameter of the module is called so; they are {}",
          i, pattern, fmt::join(names, ", "));
  }
  for (size_t k = 0; k < groups_[i].parameters.size(); ++k) {
    if (std::ranges::none_of(named.values(),
                             [&](const auto& one) { return one.is_same(groups_[i].parameters[k]); }))
      raise<InvalidArgument>("TrainerOptions::groups[{}].parameters[{}] is no parameter of the module", i, k);
  }
}

const ParameterGroup* ParameterGroups::group_of(const torch::Tensor& parameter) const {
  if (groups_.empty()) return nullptr;
  std::vector<std::string> names;
  for (const auto& item : module_.named_parameters()) {
    if (item.value().is_same(parameter)) names.push_back(item.key());
  }
  for (const auto& group : groups_) {
    if (std::ranges::any_of(names, [&](const auto& name) { return is_like(group.names, name); }) ||
        std::ranges::any_of(group.parameters, [&](const auto& member) { return member.is_same(parameter); }))
      return &group;
  }
  return nullptr;
}

void ParameterGroups::freeze() {
  for (auto& parameter : module_.named_parameters()) {
    const ParameterGroup* group = group_of(parameter.value());
    if (group == nullptr || !group->frozen) continue;
    FlatModel::refuse_if_trained(parameter.key(), parameter.value());
    parameter.value().requires_grad_(false);
  }
}

GroupRates ParameterGroups::rates_of(const torch::Tensor& parameter) const {
  const ParameterGroup* group = group_of(parameter);
  if (group == nullptr) return {};
  return {.lr_factor = group->lr ? *group->lr / lr_ : 1, .weight_decay = group->weight_decay};
}

}  // namespace muster::detail
