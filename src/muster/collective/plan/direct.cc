#include "muster/collective/plan/plan.h"

namespace muster::detail {
namespace {

// For every other member, by its position.
template <typename Visit>
void for_others(const std::vector<int>& members, int position, const Visit& visit) {
  for (int other = 0; other < static_cast<int>(members.size()); ++other) {
    if (other != position) visit(other, members[static_cast<size_t>(other)]);
  }
}

std::vector<int> ranks_up_to(int ranks) {
  std::vector<int> members;
  for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
  return members;
}

}  // namespace

Step direct_reduce(const std::vector<int>& members, int position) {
  Step step;
  for_others(members, position, [&](int other, int peer) {
    step.sends.push_back({peer, {other, other + 1}});
    step.receives.push_back({peer, {position, position + 1}, Action::kReduce, /*final=*/true});
  });
  return step;
}

Step direct_gather(const std::vector<int>& members, int position) {
  Step step;
  for_others(members, position, [&](int other, int peer) {
    step.sends.push_back({peer, {position, position + 1}});
    step.receives.push_back({peer, {other, other + 1}, Action::kOverwrite});
  });
  return step;
}

Step exchange(const std::vector<int>& members, int position, bool final) {
  Step step;
  for_others(members, position, [&](int, int peer) {
    step.sends.push_back({peer, {0, 1}});
    step.receives.push_back({peer, {0, 1}, Action::kReduce, final});
  });
  return step;
}

Step direct_all_to_all(int rank, int ranks) {
  Step step;
  for_others(ranks_up_to(ranks), rank, [&](int other, int peer) {
    step.sends.push_back({peer, {other, other + 1}});
    step.receives.push_back({peer, {other, other + 1}, Action::kOverwrite});
  });
  return step;
}

Step direct_broadcast(int rank, int ranks, int root) {
  Step step;
  if (rank != root) step.receives.push_back({root, {0, 1}, Action::kOverwrite});
  for_others(ranks_up_to(ranks), rank, [&](int, int peer) {
    if (rank == root) step.sends.push_back({peer, {0, 1}});
  });
  return step;
}

Step direct_reduce_to_root(int rank, int ranks, int root) {
  Step step;
  if (rank != root) step.sends.push_back({root, {0, 1}});
  for_others(ranks_up_to(ranks), rank, [&](int, int peer) {
    if (rank == root) step.receives.push_back({peer, {0, 1}, Action::kReduce, /*final=*/true});
  });
  return step;
}

}  // namespace muster::detail
