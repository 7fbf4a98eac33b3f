#pragma once

// How single rows of an embedding table change with their gradients. Only the rows of a batch are updated, so
// each row counts its own updates: Adam's bias correction knows how often this row has moved, and a row that
// is not in the batch stays as it is. A rule has no state of its own: what it remembers of a row lies in
// states() floats for each of the row's, which the caller keeps, zeroed at first.
//
//   auto rule = row_rule(adagrad({.lr = 0.05}));
//   rule->apply({.values = row, .states = states, .width = 32}, gradient, /*update=*/1);
//   parse_row_rule(rule->to_string());        // the same rule in another process
//
// Rules are immutable and thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "muster/optim/rules.h"

namespace muster::detail {

/// A row of float32, and its states, one after the other.
struct Row {
  float* values = nullptr;
  float* states = nullptr;
  size_t width = 0;
};

class RowRule {
 public:
  virtual ~RowRule() = default;

  virtual size_t states() const = 0;          ///< how many it needs
  virtual std::string to_string() const = 0;  ///< the rule with all its options, exactly

  /// `update`: how many updates this row has had, with this one.
  virtual void apply(const Row& row, const float* gradient, int64_t update) const = 0;
};

using RowRulePtr = std::shared_ptr<const RowRule>;  // shared: rules are values that nobody changes

/// A rule of rules.h, with the row's updates as its steps. Momentum and weight decay, too, move a row only
/// when it is in the batch. Rows that are in every batch get the bits of the rule itself. Throws
/// InvalidArgument for rules that measure whole parameters (LARS, LAMB).
RowRulePtr row_rule(UpdateRulePtr rule);

/// Throws InvalidArgument for options that make no sense.
RowRulePtr ftrl(optim::FTRLOptions options = {});

/// The row becomes what is pushed, bit by bit: for what is stored and not trained.
RowRulePtr assign();

/// The rule that a text of RowRule::to_string() describes. Throws InvalidArgument for anything else.
RowRulePtr parse_row_rule(const std::string& text);

}  // namespace muster::detail
