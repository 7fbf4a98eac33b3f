#include <algorithm>
#include <bit>
#include <optional>

#include "muster/collective/plan/plan.h"

namespace muster::detail {
namespace {

// When n is no power of two, the first 2 (n - p) ranks work in pairs: the odd one gives its data to the even
// one, which works for both, and gets the result from it in the end.
struct Fold {
  Fold(int position, int n) : power(static_cast<int>(std::bit_floor(static_cast<unsigned>(n)))) {
    const int extra = n - power;
    if (position < 2 * extra) {
      partner = position ^ 1;
      if (position % 2 == 0) virtual_rank = position / 2;
    } else {
      virtual_rank = position - extra;
    }
  }

  int position_of(int other, int n) const {
    const int extra = n - power;
    return other < extra ? 2 * other : other + extra;
  }

  int power;
  std::optional<int> partner;
  std::optional<int> virtual_rank;  // empty: our partner works for us
};

template <typename AddSteps>
std::vector<Step> folded(const Fold& fold, int partner, Blocks all, const AddSteps& add_steps) {
  std::vector<Step> steps;
  if (!fold.virtual_rank) {
    steps.push_back({.sends = {{partner, all}}, .receives = {}});
    steps.push_back({.sends = {}, .receives = {{partner, all, Action::kOverwrite}}});
    return steps;
  }
  if (fold.partner) steps.push_back({.sends = {}, .receives = {{partner, all, Action::kReduce}}});
  add_steps(steps);
  if (fold.partner) steps.push_back({.sends = {{partner, all}}, .receives = {}});
  return steps;
}

}  // namespace

std::vector<Step> halving_doubling(int rank, int ranks, int& blocks) {
  const Fold fold(rank, ranks);
  blocks = fold.power;
  return folded(fold, fold.partner.value_or(0), {0, blocks}, [&](std::vector<Step>& steps) {
    std::vector<Step> back;
    Blocks mine = {0, fold.power};
    for (int distance = fold.power / 2; distance > 0; distance /= 2) {
      const int peer = fold.position_of(*fold.virtual_rank ^ distance, ranks);
      const int middle = (mine.begin + mine.end) / 2;
      Blocks theirs = {middle, mine.end};
      mine.end = middle;
      if ((*fold.virtual_rank & distance) != 0) std::swap(mine, theirs);
      steps.push_back(
          {.sends = {{peer, theirs}}, .receives = {{peer, mine, Action::kReduce, distance == 1}}});
      back.push_back({.sends = {{peer, mine}}, .receives = {{peer, theirs, Action::kOverwrite}}});
    }
    steps.insert(steps.end(), back.rbegin(), back.rend());
  });
}

std::vector<Step> doubling(const std::vector<int>& members, int position) {
  const int n = static_cast<int>(members.size());
  const Fold fold(position, n);
  const Blocks all = {0, 1};
  const int partner = members[static_cast<size_t>(fold.partner.value_or(0))];
  return folded(fold, partner, all, [&](std::vector<Step>& steps) {
    for (int distance = 1; distance < fold.power; distance *= 2) {
      const int other = fold.position_of(*fold.virtual_rank ^ distance, n);
      const int peer = members[static_cast<size_t>(other)];
      steps.push_back(
          {.sends = {{peer, all}}, .receives = {{peer, all, Action::kReduce, 2 * distance == fold.power}}});
    }
  });
}

}  // namespace muster::detail
