// The part of the compiler that cuts a program into blocks, by the values of other tasks that they need
// (program.h).

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "muster/runtime/compiler.h"

namespace muster::detail {

void Compiler::form_blocks(std::vector<Unit>& units) {
  // Which values of other tasks each unit needs, as numbers of sets. The empty one is the first.
  std::vector<std::vector<uint32_t>> sets = {{}};
  std::map<std::vector<uint32_t>, uint32_t> numbers = {{{}, 0}};
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> unions;
  const auto number_of_set = [&](std::vector<uint32_t> set) {
    const auto [found, is_new] = numbers.emplace(std::move(set), static_cast<uint32_t>(sets.size()));
    if (is_new) sets.push_back(found->first);
    return found->second;
  };
  const auto united = [&](uint32_t a, uint32_t b) {
    if (a == b || b == 0) return a;
    if (a == 0) return b;
    const auto [found, is_new] = unions.emplace(std::minmax(a, b), 0);
    if (is_new) {
      std::vector<uint32_t> both;
      std::set_union(sets[a].begin(), sets[a].end(), sets[b].begin(), sets[b].end(),
                     std::back_inserter(both));
      found->second = number_of_set(std::move(both));
    }
    return found->second;
  };
  // Receiving depends on nothing: it is what blocks wait for. What fills gaps is waited for likewise, and so is
  // its end, so that it has blocks of its own.
  std::vector<uint32_t> needs(units.size(), 0);
  std::vector<int64_t> filler_of(units.size());
  for (const auto& unit : units) filler_of[unit.number] = has_peers_ ? unit.filler() : 0;
  std::map<int64_t, uint32_t> fillers;         // the element of each; the next is that of its end
  std::map<uint32_t, BlockUrgency> urgencies;  // of sets
  uint32_t elements = 0;
  for (auto& unit : units) {
    uint32_t& mine = needs[unit.number];
    if (unit.is_receive()) {
      mine = number_of_set({elements++});
    } else if (const int64_t filler = filler_of[unit.number]; filler != 0) {
      const auto [found, is_new] = fillers.emplace(filler, elements);
      if (is_new) elements += 2;
      mine = united(mine, number_of_set({found->second}));
      urgencies[mine] = BlockUrgency::kFiller;
    } else if (unit.pass != nullptr) {
      urgencies.emplace(mine, BlockUrgency::kBackward);
    }
    unit.block = mine;
    for (const size_t follower : unit.followers) {
      uint32_t given = mine;
      if (const int64_t filler = filler_of[unit.number]; filler != 0 && filler_of[follower] != filler)
        given = united(mine, number_of_set({fillers.at(filler) + 1}));
      needs[follower] = united(needs[follower], given);
    }
  }
  if (sets.size() == 1) {
    program_.blocks.resize(1);
    return;
  }
  // A block that another one needs, needs less: the smaller sets come first. Of the same size, the first.
  std::vector<uint32_t> order(sets.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return sets[a].size() < sets[b].size(); });
  std::vector<uint32_t> rank(sets.size());
  for (uint32_t i = 0; i < order.size(); ++i) rank[order[i]] = i;
  for (auto& unit : units) unit.block = unit.is_receive() ? 0 : rank[unit.block];
  std::stable_sort(units.begin(), units.end(), [](const Unit& a, const Unit& b) {
    return std::tuple(!a.is_receive(), a.block) < std::tuple(!b.is_receive(), b.block);
  });
  program_.blocks.resize(sets.size());
  for (const auto& [set, urgency] : urgencies) program_.blocks[rank[set]].urgency = urgency;
}

void Compiler::connect_blocks(const std::vector<Unit>& units) {
  if (program_.blocks.size() == 1) {
    program_.blocks.front().count = static_cast<uint32_t>(program_.instructions.size());
    return;
  }
  std::vector<const Unit*> by_number(units.size());
  for (const auto& unit : units) by_number[unit.number] = &unit;
  std::set<std::pair<uint32_t, uint32_t>> known;
  size_t received = 0;
  for (const auto& unit : units) {
    for (const size_t number : unit.followers) {
      const Unit& follower = *by_number[number];
      if (follower.is_receive()) continue;
      if (unit.is_receive()) {
        auto& waiting = program_.received[received].blocks;
        if (std::find(waiting.begin(), waiting.end(), follower.block) != waiting.end()) continue;
        waiting.push_back(follower.block);
        ++program_.blocks[follower.block].missing;
      } else if (unit.block != follower.block && known.emplace(unit.block, follower.block).second) {
        program_.blocks[unit.block].followers.push_back(follower.block);
        ++program_.blocks[follower.block].missing;
      }
    }
    if (unit.is_receive()) ++received;
  }
  // What one block makes for itself another may use too: a leaf.
  constexpr uint32_t kNone = 0xffffffff;
  std::vector<uint32_t> made_by(program_.slots, kNone);
  for (uint32_t block = 0; block < program_.blocks.size(); ++block) {
    for (uint32_t i = 0; i < program_.blocks[block].count; ++i) {
      const Instruction& instruction = program_.instructions[program_.blocks[block].first + i];
      each_slot(instruction, [&](uint32_t slot) {
        const uint32_t maker = made_by[slot];
        if (maker == kNone || maker == block || !known.emplace(maker, block).second) return;
        program_.blocks[maker].followers.push_back(block);
        ++program_.blocks[block].missing;
      });
      for (uint32_t k = 0; k < instruction.results; ++k) made_by[instruction.result + k] = block;
    }
  }
}

// Of slots that several blocks use nobody knows who is the last.
void Compiler::count_shared_uses() {
  if (program_.blocks.size() == 1) return;
  constexpr uint32_t kNone = 0xffffffff;
  std::vector<uint32_t> seen(program_.slots, kNone);
  std::vector<bool> is_shared(program_.slots, false);
  const auto each_use = [&](const auto& visit) {
    for (uint32_t block = 0; block < program_.blocks.size(); ++block) {
      for (uint32_t i = 0; i < program_.blocks[block].count; ++i) {
        const Instruction& instruction = program_.instructions[program_.blocks[block].first + i];
        each_slot(instruction, [&](uint32_t slot) { visit(block, slot); });
        for (uint32_t result = 0; result < instruction.results; ++result)
          visit(block, instruction.result + result);
      }
    }
  };
  each_use([&](uint32_t block, uint32_t slot) {
    if (seen[slot] != kNone && seen[slot] != block) is_shared[slot] = true;
    seen[slot] = block;
  });
  program_.shared_uses.assign(program_.slots, 0);
  std::fill(seen.begin(), seen.end(), kNone);
  each_use([&](uint32_t block, uint32_t slot) {
    if (!is_shared[slot] || seen[slot] == block) return;
    seen[slot] = block;
    program_.blocks[block].uses.push_back(slot);
    ++program_.shared_uses[slot];
  });
  for (const auto& fetch : program_.fetches) {
    if (fetch.kind == Source::Kind::kSlot && program_.shared_uses[fetch.index] > 0)
      ++program_.shared_uses[fetch.index];
  }
}

}  // namespace muster::detail
