#include <algorithm>

#include "muster/collective/plan/plan.h"

namespace muster::detail {
namespace {

// Positions along the chain or in the tree: the root is at 0.
struct Positions {
  Positions(int rank, int size, int first) : mine((rank - first + size) % size), ranks(size), root(first) {}
  int rank_at(int position) const { return (position + root) % ranks; }
  int mine;
  int ranks;
  int root;
};

constexpr Blocks kAll = {0, 1};

// The last receive of the root completes the sum.
std::vector<Step> reversed(std::vector<Step> steps, bool is_root) {
  std::reverse(steps.begin(), steps.end());
  for (auto& step : steps) {
    Step turned;
    for (const auto& send : step.sends) turned.receives.push_back({send.peer, send.blocks, Action::kReduce});
    for (const auto& receive : step.receives) turned.sends.push_back({receive.peer, receive.blocks});
    step = turned;
  }
  if (is_root && !steps.empty()) {
    for (auto& receive : steps.back().receives) receive.final = true;
  }
  return steps;
}

}  // namespace

std::vector<Step> chain_broadcast(int rank, int ranks, int root) {
  const Positions positions(rank, ranks, root);
  std::vector<Step> steps;
  if (positions.mine > 0)
    steps.push_back(
        {.sends = {}, .receives = {{positions.rank_at(positions.mine - 1), kAll, Action::kOverwrite}}});
  if (positions.mine + 1 < ranks)
    steps.push_back({.sends = {{positions.rank_at(positions.mine + 1), kAll}}, .receives = {}});
  return steps;
}

// In step k the positions below 2^k send to those 2^k further on.
std::vector<Step> tree_broadcast(int rank, int ranks, int root) {
  const Positions positions(rank, ranks, root);
  std::vector<Step> steps;
  for (int distance = 1; distance < ranks; distance *= 2) {
    Step step;
    if (positions.mine < distance && positions.mine + distance < ranks) {
      step.sends.push_back({positions.rank_at(positions.mine + distance), kAll});
    } else if (positions.mine >= distance && positions.mine < 2 * distance) {
      step.receives.push_back({positions.rank_at(positions.mine - distance), kAll, Action::kOverwrite});
    }
    steps.push_back(step);
  }
  return steps;
}

std::vector<Step> chain_reduce(int rank, int ranks, int root) {
  return reversed(chain_broadcast(rank, ranks, root), rank == root);
}

std::vector<Step> tree_reduce(int rank, int ranks, int root) {
  return reversed(tree_broadcast(rank, ranks, root), rank == root);
}

}  // namespace muster::detail
