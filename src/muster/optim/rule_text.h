#pragma once

// Rules as text: the options of every rule with their names, in one place for writing and for reading. The
// public side is UpdateRule::to_string() and parse_rule() (rules.h).

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

}  // namespace muster::detail
