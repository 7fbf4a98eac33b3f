#include "muster/collective/algorithm_choice.h"

#include <array>
#include <limits>

#include <fmt/format.h>

#include "muster/base/text.h"
#include "muster/collective/native/rank_state.h"
#include "muster/collective/plan/plan.h"

namespace muster::detail {
namespace {

enum class Where { kOneHost, kOneRankPerHost, kMixed };

struct Rule {
  Collective collective;
  Where where;
  size_t up_to;  // bytes
  int ranks;     // at most
  Algorithm algorithm;
};

constexpr size_t kAny = std::numeric_limits<size_t>::max();
constexpr int kMany = std::numeric_limits<int>::max();
constexpr size_t kKiB = 1024;

// The first rule that fits counts.
constexpr std::array kRules = {
    Rule{Collective::kAllReduce, Where::kOneHost, kInlineBytes, kMany, Algorithm::kExchange},
    Rule{Collective::kAllReduce, Where::kOneHost, kAny, kMany, Algorithm::kDirect},
    Rule{Collective::kAllReduce, Where::kOneRankPerHost, 256 * kKiB, 2, Algorithm::kDoubling},
    Rule{Collective::kAllReduce, Where::kOneRankPerHost, 16 * kKiB, kMany, Algorithm::kDoubling},
    Rule{Collective::kAllReduce, Where::kOneRankPerHost, 4096 * kKiB, kMany, Algorithm::kHalvingDoubling},
    Rule{Collective::kAllReduce, Where::kOneRankPerHost, kAny, kMany, Algorithm::kRing},
    Rule{Collective::kAllReduce, Where::kMixed, kInlineBytes, kMany, Algorithm::kDoubling},
    Rule{Collective::kAllReduce, Where::kMixed, kAny, kMany, Algorithm::kHierarchical},
    Rule{Collective::kReduceScatter, Where::kOneHost, kAny, kMany, Algorithm::kDirect},
    Rule{Collective::kReduceScatter, Where::kOneRankPerHost, kAny, kMany, Algorithm::kRing},
    Rule{Collective::kReduceScatter, Where::kMixed, kAny, kMany, Algorithm::kRing},
    Rule{Collective::kAllGather, Where::kOneHost, kAny, kMany, Algorithm::kDirect},
    Rule{Collective::kAllGather, Where::kOneRankPerHost, kAny, kMany, Algorithm::kRing},
    Rule{Collective::kAllGather, Where::kMixed, kAny, kMany, Algorithm::kRing},
    Rule{Collective::kBroadcast, Where::kOneHost, kAny, kMany, Algorithm::kDirect},
    Rule{Collective::kBroadcast, Where::kOneRankPerHost, 64 * kKiB, kMany, Algorithm::kTree},
    Rule{Collective::kBroadcast, Where::kOneRankPerHost, kAny, kMany, Algorithm::kChain},
    Rule{Collective::kBroadcast, Where::kMixed, 64 * kKiB, kMany, Algorithm::kTree},
    Rule{Collective::kBroadcast, Where::kMixed, kAny, kMany, Algorithm::kChain},
    Rule{Collective::kReduce, Where::kOneHost, kAny, kMany, Algorithm::kDirect},
    Rule{Collective::kReduce, Where::kOneRankPerHost, 64 * kKiB, kMany, Algorithm::kTree},
    Rule{Collective::kReduce, Where::kOneRankPerHost, kAny, kMany, Algorithm::kChain},
    Rule{Collective::kReduce, Where::kMixed, 64 * kKiB, kMany, Algorithm::kTree},
    Rule{Collective::kReduce, Where::kMixed, kAny, kMany, Algorithm::kChain},
    Rule{Collective::kAllToAll, Where::kOneHost, kAny, kMany, Algorithm::kDirect},
    Rule{Collective::kAllToAll, Where::kOneRankPerHost, kAny, kMany, Algorithm::kDirect},
    Rule{Collective::kAllToAll, Where::kMixed, kAny, kMany, Algorithm::kDirect},
    Rule{Collective::kBarrier, Where::kOneHost, kAny, kMany, Algorithm::kExchange},
    Rule{Collective::kBarrier, Where::kOneRankPerHost, kAny, kMany, Algorithm::kDoubling},
    Rule{Collective::kBarrier, Where::kMixed, kAny, kMany, Algorithm::kDoubling},
};

const char* name_of(Where where) {
  constexpr std::array kNames = {"one host", "one rank a host", "several ranks a host"};
  return kNames.at(static_cast<size_t>(where));
}

}  // namespace

Algorithm choose_algorithm(const Operation& operation, const Topology& topology, Algorithm wanted) {
  const size_t bytes = operation.bytes();
  if (has_plan(operation.collective, wanted)) {
    // What goes inline must fit a header slot.
    const bool exchanged_inline = wanted == Algorithm::kExchange && topology.hosts() == 1;
    const bool doubled_inline = wanted == Algorithm::kDoubling && topology.uniform() && topology.fewest() > 1;
    if (!(exchanged_inline || doubled_inline) || bytes <= kInlineBytes) return wanted;
  }
  const Where where = topology.hosts() == 1                 ? Where::kOneHost
                      : topology.hosts() == topology.size() ? Where::kOneRankPerHost
                                                            : Where::kMixed;
  for (const auto& rule : kRules) {
    if (rule.collective == operation.collective && rule.where == where && bytes <= rule.up_to &&
        topology.size() <= rule.ranks) {
      return rule.algorithm;
    }
  }
  return Algorithm::kRing;  // every collective has a last rule
}

std::string explain_choices() {
  std::string text = fmt::format("{:<15} {:<21} {:<16} {:<11} {}\n", "collective", "ranks are on", "up to",
                                 "ranks", "algorithm");
  for (const auto& rule : kRules) {
    text += fmt::format("{:<15} {:<21} {:<16} {:<11} {}\n", name_of(rule.collective), name_of(rule.where),
                        rule.up_to == kAny ? "any size" : format_bytes(rule.up_to),
                        rule.ranks == kMany ? "any" : fmt::format("up to {}", rule.ranks),
                        name_of(rule.algorithm));
  }
  return text;
}

}  // namespace muster::detail
