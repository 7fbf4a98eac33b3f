#include "muster/train/torch_optimizer.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <typeinfo>

#include <c10/util/Type.h>
#include <fmt/ranges.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

// Options of the user's need not have a rate: then libtorch throws.
std::optional<double> rate_of(const torch::optim::OptimizerParamGroup& group) {
  try {
    return group.options().get_lr();
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

template <typename Options>
std::string decay_text(const Options& options) {
  return fmt::format(" weight_decay={} eps={}", options.weight_decay(), options.eps());
}

template <typename Options>
std::string adam_text(const Options& options) {
  return fmt::format(" betas={},{} amsgrad={}{}", std::get<0>(options.betas()), std::get<1>(options.betas()),
                     options.amsgrad(), decay_text(options));
}

// All but the rate; nothing where the options are the user's own.
std::string options_text(const torch::optim::OptimizerOptions& options) {
  namespace optim = torch::optim;
  if (const auto* sgd = dynamic_cast<const optim::SGDOptions*>(&options))
    return fmt::format(" momentum={} dampening={} weight_decay={} nesterov={}", sgd->momentum(),
                       sgd->dampening(), sgd->weight_decay(), sgd->nesterov());
  if (const auto* adam = dynamic_cast<const optim::AdamOptions*>(&options)) return adam_text(*adam);
  if (const auto* adamw = dynamic_cast<const optim::AdamWOptions*>(&options)) return adam_text(*adamw);
  if (const auto* rms = dynamic_cast<const optim::RMSpropOptions*>(&options))
    return fmt::format(" alpha={} momentum={} centered={}{}", rms->alpha(), rms->momentum(), rms->centered(),
                       decay_text(*rms));
  if (const auto* adagrad = dynamic_cast<const optim::AdagradOptions*>(&options))
    return fmt::format(" lr_decay={} initial_accumulator_value={}{}", adagrad->lr_decay(),
                       adagrad->initial_accumulator_value(), decay_text(*adagrad));
  return "";
}

}  // namespace

TorchOptimizer::TorchOptimizer(torch::optim::Optimizer& optimizer, torch::nn::Module& module, bool scheduled)
    : optimizer_(optimizer), module_(module), scheduled_(scheduled) {
  if (dynamic_cast<torch::optim::LBFGS*>(&optimizer_) != nullptr)
    throw InvalidArgument("LBFGS computes the loss several times a step, which a Trainer can't let it");
  look_again();
  if (std::ranges::all_of(optimizer_.param_groups(),
                          [](const auto& group) { return group.params().empty(); }))
    throw InvalidArgument("the optimizer has no parameters, so that nothing would be trained");
}

TorchOptimizer::~TorchOptimizer() {
  for (size_t i = 0; i < rates_.size(); ++i) optimizer_.param_groups()[i].options().set_lr(rates_[i]);
}

void TorchOptimizer::look_again() {
  const auto parameters = module_.parameters();
  for (const auto& group : optimizer_.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (std::ranges::none_of(parameters, [&](const auto& own) { return own.is_same(parameter); }))
        raise<InvalidArgument>(
            "the optimizer has a parameter of the shape [{}] that is not the module's: the workers' copies "
            "of it would differ",
            fmt::join(parameter.sizes(), ", "));
    }
  }
  take_rates();
}

// Also of groups that were added since.
void TorchOptimizer::take_rates() {
  for (size_t i = rates_.size(); scheduled_ && i < optimizer_.param_groups().size(); ++i) {
    const auto rate = rate_of(optimizer_.param_groups()[i]);
    if (!rate)
      raise<InvalidArgument>(
          "TrainerOptions::schedule needs the rates of the optimizer, whose options have no get_lr() and "
          "set_lr()");
    rates_.push_back(*rate);
    set_.push_back(*rate);
  }
}

std::string TorchOptimizer::describe() const {
  std::string text = c10::demangle(typeid(optimizer_).name());
  for (const auto& group : optimizer_.param_groups())
    text += fmt::format(" group of {} rate {}{}", group.params().size(), rate_of(group).value_or(0),
                        options_text(group.options()));
  return text;
}

double TorchOptimizer::lr() const {
  if (!rates_.empty()) return rates_.front();
  const auto& groups = optimizer_.param_groups();
  return groups.empty() ? 0 : rate_of(groups.front()).value_or(0);
}

double TorchOptimizer::sum_of_rates() const {
  double sum = 0;
  const auto& groups = optimizer_.param_groups();
  for (size_t i = 0; i < groups.size(); ++i)
    sum += i < rates_.size() ? rates_[i] : rate_of(groups[i]).value_or(0);
  return sum;
}

bool TorchOptimizer::tells_rates() const {
  return std::ranges::all_of(optimizer_.param_groups(),
                             [](const auto& group) { return rate_of(group).has_value(); });
}

void TorchOptimizer::step(double schedule_factor) {
  take_rates();
  for (size_t i = 0; i < rates_.size(); ++i) {
    auto& options = optimizer_.param_groups()[i].options();
    if (options.get_lr() != set_[i])
      raise<InvalidArgument>(
          "the rate of the optimizer's group {} was set to {}, which TrainerOptions::schedule would undo: "
          "let either the schedule set the rates, or the program and torch's schedulers",
          i, options.get_lr());
    set_[i] = rates_[i] * schedule_factor;
    options.set_lr(set_[i]);
  }
  optimizer_.step();
}

}  // namespace muster::detail
