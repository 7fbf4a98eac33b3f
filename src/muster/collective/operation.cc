#include "muster/collective/operation.h"

#include <array>
#include <vector>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

constexpr std::array kCollectives = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
                                     "all_to_all", "barrier",        "send",       "receive"};
constexpr std::array kReduceOps = {"sum", "average", "min", "max", "product"};
constexpr std::array kAlgorithms = {
    "auto", "ring", "halving-doubling", "doubling", "exchange", "direct", "hierarchical", "chain", "tree"};

template <typename Enum, size_t kCount>
Enum parse(const char* what, std::string_view name, const std::array<const char*, kCount>& names) {
  for (size_t i = 0; i < kCount; ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
  }
  const std::vector<std::string> known(names.begin(), names.end());
  raise<InvalidArgument>("'{}' is not {}: {}{}", name, what, fmt::join(known, ", "), suggestion(name, known));
}

}  // namespace

const char* name_of(Collective collective) {
  return kCollectives.at(static_cast<size_t>(collective));
}

const char* name_of(ReduceOp op) {
  return kReduceOps.at(static_cast<size_t>(op));
}

const char* name_of(Algorithm algorithm) {
  return kAlgorithms.at(static_cast<size_t>(algorithm));
}

Algorithm parse_algorithm(std::string_view name) {
  return parse<Algorithm>("an algorithm", name, kAlgorithms);
}

std::string Operation::to_string() const {
  const std::string what = fmt::format("{} x {}", muster::name_of(dtype), count);
  switch (collective) {
    case Collective::kBarrier:
      return "barrier";
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
      return fmt::format("{}({}, {})", name_of(collective), what, name_of(op));
    case Collective::kReduce:
      return fmt::format("reduce({}, {}, root {})", what, name_of(op), peer);
    case Collective::kBroadcast:
      return fmt::format("broadcast({}, root {})", what, peer);
    case Collective::kSend:
      return fmt::format("send({}, to rank {})", what, peer);
    case Collective::kReceive:
      return fmt::format("receive({}, from rank {})", what, peer);
    default:
      return fmt::format("{}({})", name_of(collective), what);
  }
}

}  // namespace muster::detail
