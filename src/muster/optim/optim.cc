#include "muster/optim.h"

#include "muster/optim/row_rules.h"
#include "muster/optim/rules.h"

namespace muster::optim {

double Optimizer::lr() const {
  return rule_->lr();
}

std::string Optimizer::to_string() const {
  return rule_->to_string();
}

SGD::SGD(SGDOptions options) : Optimizer(detail::sgd(options)) {}
Adam::Adam(AdamOptions options) : Optimizer(detail::adam(options)) {}
AdamW::AdamW(AdamWOptions options) : Optimizer(detail::adamw(options)) {}
Adagrad::Adagrad(AdagradOptions options) : Optimizer(detail::adagrad(options)) {}
RMSprop::RMSprop(RMSpropOptions options) : Optimizer(detail::rmsprop(options)) {}
LARS::LARS(LARSOptions options) : Optimizer(detail::lars(options)) {}
LAMB::LAMB(LAMBOptions options) : Optimizer(detail::lamb(options)) {}

RowOptimizer::RowOptimizer(const Optimizer& optimizer) : rule_(detail::row_rule(optimizer.rule())) {}

std::string RowOptimizer::to_string() const {
  return rule_->to_string();
}

FTRL::FTRL(FTRLOptions options) : RowOptimizer(detail::ftrl(options)) {}

}  // namespace muster::optim
