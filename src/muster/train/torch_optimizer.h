#pragma once

// An optimizer of torch's, or of the user's, that a Trainer lets step: checked against the module, its rates
// multiplied by the schedule, and given back as it was. Of the Trainer's thread. The optimizer and the module
// outlive this.

#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

namespace muster::detail {

class TorchOptimizer {
 public:
  /// Throws InvalidArgument for an optimizer that needs a closure or has no parameters, and, where rates are to
  /// be scheduled, for one that does not tell them.
  TorchOptimizer(torch::optim::Optimizer& optimizer, torch::nn::Module& module, bool scheduled);
  ~TorchOptimizer();
  TorchOptimizer(const TorchOptimizer&) = delete;
  TorchOptimizer& operator=(const TorchOptimizer&) = delete;

  /// The module or the optimizer may have other parameters than before. Throws InvalidArgument for a
  /// parameter that is not the module's.
  void look_again();

  /// What must be the same on all workers: its type, its groups and their rates.
  std::string describe() const;

  /// The rate of the first group, before the schedule; 0 when it does not tell.
  double lr() const;

  /// Of the rates of all groups, before the schedule.
  double sum_of_rates() const;

  /// Whether all groups have a rate that they tell. Optimizers of the user's need not.
  bool tells_rates() const;

  /// Throws InvalidArgument where rates are scheduled and somebody else has set them.
  void step(double schedule_factor);

 private:
  void take_rates();

  torch::optim::Optimizer& optimizer_;
  torch::nn::Module& module_;
  const bool scheduled_;
  std::vector<double> rates_;  // of the groups, before the schedule; empty unless scheduled
  std::vector<double> set_;    // as they were set last
};

}  // namespace muster::detail
