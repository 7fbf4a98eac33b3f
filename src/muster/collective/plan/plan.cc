#include "muster/collective/plan/plan.h"

#include <numeric>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

std::vector<int> all_ranks(int ranks) {
  std::vector<int> members(static_cast<size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

// Ranks of one host first agree inside it, through memory; then each of them swaps with its counterparts.
Plan doubling_plan(int rank, const Topology& topology) {
  Plan plan = {.algorithm = Algorithm::kDoubling, .blocks = 1, .stages = {}};
  const int local = topology.fewest();
  if (local == 1 || !topology.uniform()) {
    plan.stages = {{Medium::kLinks, doubling(all_ranks(topology.size()), rank)}};
    return plan;
  }
  const int host = topology.host_of(rank);
  std::vector<int> counterparts;
  for (int other = 0; other < topology.hosts(); ++other) {
    counterparts.push_back(topology.ranks_of(other)[static_cast<size_t>(topology.local_rank(rank))]);
  }
  plan.stages = {{Medium::kMemory,
                  {exchange(topology.ranks_of(host), topology.local_rank(rank), topology.hosts() == 1)}},
                 {Medium::kLinks, doubling(counterparts, host)}};
  return plan;
}

Plan all_reduce_plan(Algorithm algorithm, int rank, const Topology& topology) {
  const int ranks = topology.size();
  const auto members = all_ranks(ranks);
  const Medium medium = topology.hosts() == 1 ? Medium::kMemory : Medium::kLinks;
  Plan plan = {.algorithm = algorithm, .blocks = ranks, .stages = {}};
  switch (algorithm) {
    case Algorithm::kRing:
      plan.stages = {{Medium::kLinks, ring_all_reduce(members, rank, 0)}};
      return plan;
    case Algorithm::kHalvingDoubling: {
      auto steps = halving_doubling(rank, ranks, plan.blocks);
      plan.stages = {{Medium::kLinks, std::move(steps)}};
      return plan;
    }
    case Algorithm::kDoubling:
      return doubling_plan(rank, topology);
    case Algorithm::kExchange:
      plan.blocks = 1;
      plan.stages = {{medium, {exchange(members, rank, true)}}};
      return plan;
    case Algorithm::kDirect:
      plan.stages = {{medium, {direct_reduce(members, rank), direct_gather(members, rank)}}};
      return plan;
    default:
      return hierarchical(rank, topology);
  }
}

}  // namespace

bool has_plan(Collective collective, Algorithm algorithm) {
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kBarrier:
      return algorithm != Algorithm::kAuto && algorithm != Algorithm::kChain && algorithm != Algorithm::kTree;
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      return algorithm == Algorithm::kRing || algorithm == Algorithm::kDirect;
    case Collective::kBroadcast:
    case Collective::kReduce:
      return algorithm == Algorithm::kDirect || algorithm == Algorithm::kChain ||
             algorithm == Algorithm::kTree;
    case Collective::kAllToAll:
      return algorithm == Algorithm::kDirect;
    default:
      return false;
  }
}

Plan make_plan(Collective collective, Algorithm algorithm, int rank, const Topology& topology, int root) {
  if (!has_plan(collective, algorithm))
    raise<InvalidArgument>("there is no {} by {}", name_of(collective), name_of(algorithm));
  if (collective == Collective::kAllReduce || collective == Collective::kBarrier)
    return all_reduce_plan(algorithm, rank, topology);
  const int ranks = topology.size();
  const auto members = all_ranks(ranks);
  const bool direct = algorithm == Algorithm::kDirect;
  Stage stage;
  stage.medium = direct && topology.hosts() == 1 ? Medium::kMemory : Medium::kLinks;
  int blocks = ranks;
  switch (collective) {
    case Collective::kReduceScatter:
      stage.steps = direct ? std::vector{direct_reduce(members, rank)} : ring_reduce_scatter(rank, ranks);
      break;
    case Collective::kAllGather:
      stage.steps = direct ? std::vector{direct_gather(members, rank)} : ring_all_gather(rank, ranks);
      break;
    case Collective::kAllToAll:
      stage.steps = {direct_all_to_all(rank, ranks)};
      break;
    case Collective::kBroadcast:
      blocks = 1;
      stage.steps = direct                           ? std::vector{direct_broadcast(rank, ranks, root)}
                    : algorithm == Algorithm::kChain ? chain_broadcast(rank, ranks, root)
                                                     : tree_broadcast(rank, ranks, root);
      break;
    default:
      blocks = 1;
      stage.steps = direct                           ? std::vector{direct_reduce_to_root(rank, ranks, root)}
                    : algorithm == Algorithm::kChain ? chain_reduce(rank, ranks, root)
                                                     : tree_reduce(rank, ranks, root);
      break;
  }
  return {.algorithm = algorithm, .blocks = blocks, .stages = {std::move(stage)}};
}

}  // namespace muster::detail
