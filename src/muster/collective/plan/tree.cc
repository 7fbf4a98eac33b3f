#include <algorithm>

#include "muster/collective/plan/plan.h"

namespace muster {
namespace {

// Places along the chain or in the tree: the root is at 0.
struct Places {
  Places(int rank, int size, int first) : mine((rank - first + size) % size), ranks(size), root(first) {}
  int rank_at(int place) const { return (place + root) % ranks; }
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
  const Places places(rank, ranks, root);
  std::vector<Step> steps;
  if (places.mine > 0)
    steps.push_back({.sends = {}, .receives = {{places.rank_at(places.mine - 1), kAll, Action::kOverwrite}}});
  if (places.mine + 1 < ranks)
    steps.push_back({.sends = {{places.rank_at(places.mine + 1), kAll}}, .receives = {}});
  return steps;
}

// In step k the places below 2^k send to those 2^k further on.
std::vector<Step> tree_broadcast(int rank, int ranks, int root) {
  const Places places(rank, ranks, root);
  std::vector<Step> steps;
  for (int distance = 1; distance < ranks; distance *= 2) {
    Step step;
    if (places.mine < distance && places.mine + distance < ranks) {
      step.sends.push_back({places.rank_at(places.mine + distance), kAll});
    } else if (places.mine >= distance && places.mine < 2 * distance) {
      step.receives.push_back({places.rank_at(places.mine - distance), kAll, Action::kOverwrite});
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

}  // namespace muster
