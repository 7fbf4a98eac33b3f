#include "muster/runtime/program.h"

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/runtime/compiler.h"

namespace muster::detail {

std::string NodeLabel::to_string() const {
  return fmt::format("node '{}' ({}, made at {})", name, op, describe(where));
}

void Program::Feed::check(const at::Tensor& given) const {
  if (!given.defined()) raise<InvalidArgument>("'{}' is fed an undefined tensor", name);
  if (dtype && given.scalar_type() != *dtype)
    raise<InvalidArgument>("'{}' is fed a tensor of type {}; expected {}", name,
                           c10::toString(given.scalar_type()), c10::toString(*dtype));
  if (!shape.accepts(given.sizes()))
    raise<InvalidArgument>("'{}' is fed a tensor of sizes {}; expected {}", name,
                           Shape(given.sizes()).to_string(), shape.to_string());
}

void Program::check(const std::vector<Feed>& feeds, const std::vector<at::Tensor>& given) {
  if (given.size() != feeds.size())
    raise<InvalidArgument>("{} tensors are given for {} feeds", given.size(), feeds.size());
  const Feed* first = nullptr;
  int64_t batch = 0;
  for (size_t i = 0; i < feeds.size(); ++i) {
    feeds[i].check(given[i]);
    if (!feeds[i].shape.known()) continue;
    const auto& sizes = feeds[i].shape.sizes();
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      if (sizes[dim].batches == 0) continue;
      const int64_t mine = (given[i].size(static_cast<int64_t>(dim)) - sizes[dim].fixed) / sizes[dim].batches;
      if (first != nullptr && mine != batch)
        raise<InvalidArgument>(
            "'{}' is fed a batch of {}, and '{}' one of {}: N is the same wherever it stands in a shape",
            first->name, batch, feeds[i].name, mine);
      first = &feeds[i];
      batch = mine;
    }
  }
}

Program::Program(const Signature& signature, Container& container, const CompileOptions& options) {
  Compiler(*this, signature, container, options).compile();
}

}  // namespace muster::detail
