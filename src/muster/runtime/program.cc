#include "muster/runtime/program.h"

#include <fmt/format.h>

#include "muster/runtime/compiler.h"

namespace muster::detail {

std::string NodeLabel::to_string() const {
  return fmt::format("node '{}' ({}, made at {})", name, op, describe(where));
}

Program::Program(const Signature& signature, Container& container, const CompileOptions& options) {
  Compiler(*this, signature, container, options).compile();
}

}  // namespace muster::detail
