#pragma once

// The update rules behind the optimizers of muster/optim.h, which says what each computes.
//
//   UpdateRulePtr rule = adamw({.lr = 3e-4, .weight_decay = 0.1});
//   rule = parse_rule(rule->to_string());             // the same rule in another process (rule_text.h)
//
// A factory throws InvalidArgument for options that make no sense. The states of a rule are in the order in
// which muster/optim.h names them; d has the scaled gradient in it: gradient_scale * gradient.
//
// The ratio of LARS and LAMB is 1 where UpdateNow::adapt is false. LAMB's measure() advances the states;
// where adapt is false, it does nothing and may be left out: apply() does it all.

#include <string>

#include "muster/optim.h"
#include "muster/optim/update_rule.h"

namespace muster::detail {

UpdateRulePtr sgd(optim::SGDOptions options = {});
UpdateRulePtr adam(optim::AdamOptions options = {});
UpdateRulePtr adamw(optim::AdamWOptions options = {});
UpdateRulePtr adagrad(optim::AdagradOptions options = {});
UpdateRulePtr rmsprop(optim::RMSpropOptions options = {});
UpdateRulePtr lars(optim::LARSOptions options = {});
UpdateRulePtr lamb(optim::LAMBOptions options = {});

/// parameter = gradient_scale * gradient: what is averaged is all that is wanted, as for an optimizer of
/// torch's. It has no states, and no text that parse_rule() reads.
UpdateRulePtr average();

}  // namespace muster::detail
