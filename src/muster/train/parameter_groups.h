#pragma once

// The groups of a Trainer's parameters (TrainerOptions::groups): which parameter is in which, and what that
// means for its rate and its weight decay. A value; freeze() changes the module.

#include <string>
#include <vector>

#include <torch/types.h>

#include "muster/optim/update_rule.h"
#include "muster/trainer.h"

namespace muster::detail {

class ParameterGroups {
 public:
  /// `lr`: that of the optimizer. Throws InvalidArgument for a group without a parameter of the module, or
  /// with values that make no sense. The module outlives this.
  ParameterGroups(torch::nn::Module& module, std::vector<ParameterGroup> groups, double lr);

  /// Switches off the gradients of the parameters of frozen groups.
  void freeze();

  /// What the first group that has the parameter, by any of its names, says of it.
  GroupRates rates_of(const torch::Tensor& parameter) const;

 private:
  const ParameterGroup* group_of(const torch::Tensor& parameter) const;
  void check_members(size_t group) const;

  torch::nn::Module& module_;
  const std::vector<ParameterGroup> groups_;
  const double lr_;
};

}  // namespace muster::detail
