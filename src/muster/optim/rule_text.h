#pragma once

// Rules as text: the options of every rule with their names, in one place for writing and for reading. The
// public side is UpdateRule::to_string() and parse_rule() (rules.h).

#include <string>

#include "muster/optim/rules.h"

namespace muster {

std::string rule_text(const char* name, const SgdOptions& options);
std::string rule_text(const char* name, const AdamOptions& options);  ///< adamw's options have the same names
std::string rule_text(const char* name, const AdagradOptions& options);
std::string rule_text(const char* name, const RmsPropOptions& options);
std::string rule_text(const char* name, const LarsOptions& options);
std::string rule_text(const char* name, const LambOptions& options);

}  // namespace muster
