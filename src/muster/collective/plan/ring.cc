#include "muster/collective/plan/plan.h"

namespace muster::detail {
namespace {

int modulo(int value, int n) {
  return ((value % n) + n) % n;
}

Blocks one_block(int block) {
  return {block, block + 1};
}

// One turn around the ring: in step i the rank at `position` sends block (start - i) mod n to the right and
// receives block (start - i - 1) mod n from the left.
void add_turn(std::vector<Step>& steps, const std::vector<int>& members, int position, int start, int first,
              Action action) {
  const int n = static_cast<int>(members.size());
  const int right = members[static_cast<size_t>(modulo(position + 1, n))];
  const int left = members[static_cast<size_t>(modulo(position - 1, n))];
  for (int i = 0; i < n - 1; ++i) {
    steps.push_back({.sends = {{right, one_block(first + modulo(start - i, n))}},
                     .receives = {{left, one_block(first + modulo(start - i - 1, n)), action,
                                   action == Action::kReduce && i == n - 2}}});
  }
}

std::vector<int> ring_of(int ranks) {
  std::vector<int> members;
  for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
  return members;
}

}  // namespace

std::vector<Step> ring_all_reduce(const std::vector<int>& members, int position, int first) {
  std::vector<Step> steps;
  add_turn(steps, members, position, position, first, Action::kReduce);
  // The rank at position j now holds block j + 1, reduced over all.
  add_turn(steps, members, position, position + 1, first, Action::kOverwrite);
  return steps;
}

std::vector<Step> ring_reduce_scatter(int rank, int ranks) {
  std::vector<Step> steps;
  add_turn(steps, ring_of(ranks), rank, rank - 1, 0, Action::kReduce);
  return steps;
}

std::vector<Step> ring_all_gather(int rank, int ranks) {
  std::vector<Step> steps;
  add_turn(steps, ring_of(ranks), rank, rank, 0, Action::kOverwrite);
  return steps;
}

}  // namespace muster::detail
