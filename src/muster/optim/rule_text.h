#pragma once

// Rules as text: the options of every rule with their names, in one place for writing and for reading.
// UpdateRule::to_string() writes a rule, parse_rule() reads it, in another process perhaps.
//
// Pure functions.

#include <string>

#include "muster/optim/rules.h"

namespace muster::detail {

std::string rule_text(const char* name, const optim::SGDOptions& options);
std::string rule_text(const char* name,
                      const optim::AdamOptions& options);  ///< adamw's options have the same names
std::string rule_text(const char* name, const optim::AdagradOptions& options);
std::string rule_text(const char* name, const optim::RMSpropOptions& options);
std::string rule_text(const char* name, const optim::LARSOptions& options);
std::string rule_text(const char* name, const optim::LAMBOptions& options);

/// The rule that a text of UpdateRule::to_string() describes. Throws InvalidArgument for anything else.
UpdateRulePtr parse_rule(const std::string& text);

}  // namespace muster::detail
