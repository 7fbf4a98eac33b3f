#include "muster/collective/plan/plan.h"

namespace muster::detail {

// As many shares as the host with the fewest ranks has ranks: a rank beyond them has no share and drives no
// link, but its data is reduced and it gets the result. A share is cut into as many blocks as there are
// hosts.
Plan hierarchical(int rank, const Topology& topology) {
  const int hosts = topology.hosts();
  const int shares = topology.fewest();
  const int mine = topology.local_rank(rank);
  const auto& local = topology.ranks_of(topology.host_of(rank));
  const auto share = [&](int index) { return Blocks{index * hosts, (index + 1) * hosts}; };

  Step reduce;
  Step gather;
  for (int other = 0; other < static_cast<int>(local.size()); ++other) {
    if (other == mine) continue;
    const int peer = local[static_cast<size_t>(other)];
    if (other < shares) {
      reduce.sends.push_back({peer, share(other)});
      gather.receives.push_back({peer, share(other), Action::kOverwrite});
    }
    if (mine < shares) {
      reduce.receives.push_back({peer, share(mine), Action::kReduce, hosts == 1});
      gather.sends.push_back({peer, share(mine)});
    }
  }
  std::vector<Step> ring;
  if (mine < shares) {
    std::vector<int> counterparts;
    for (int host = 0; host < hosts; ++host) {
      counterparts.push_back(topology.ranks_of(host)[static_cast<size_t>(mine)]);
    }
    ring = ring_all_reduce(counterparts, topology.host_of(rank), share(mine).begin);
  }
  return {.algorithm = Algorithm::kHierarchical,
          .blocks = shares * hosts,
          .stages = {{Medium::kMemory, {reduce}}, {Medium::kLinks, ring}, {Medium::kMemory, {gather}}}};
}

}  // namespace muster::detail
