// The part of the compiler that cuts a program into blocks, by the values of other tasks that they need
// (program.h).

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "muster/base/error.h"
#include "muster/runtime/compiler.h"

namespace muster::detail {

namespace {

// Sets of the numbers 0, 1, ... Those with the same elements are the same set, and the empty one is 0. A set
// is a tree, halved by its numbers, of which sets share what is alike in them: where a chain takes one value
// more with each of its links, the next set costs a way through the tree, and not all that was taken so far.
class NumberSets {
 public:
  using Set = uint32_t;

  // For numbers below `limit`.
  explicit NumberSets(size_t limit) {
    while ((kLeaf << height_) < limit) ++height_;
  }

  Set of(size_t number) {
    MUSTER_CHECK(number < kLeaf << height_, "there are more numbers than was said");
    Set set = leaf(uint64_t{1} << (number % kLeaf));
    for (size_t place = number / kLeaf, level = 0; level < height_; ++level, place /= 2)
      set = place % 2 == 0 ? tree(set, 0) : tree(0, set);
    return set;
  }

  Set united(Set a, Set b) {
    if (a == b || b == 0) return a;
    if (a == 0) return b;
    const uint64_t key = key_of(std::min(a, b), std::max(a, b));
    if (const auto found = unions_.find(key); found != unions_.end()) return found->second;
    const Tree one = trees_[a];
    const Tree other = trees_[b];
    const Set made = one.bits != 0 ? leaf(one.bits | other.bits)
                                   : tree(united(one.left, other.left), united(one.right, other.right));
    unions_.emplace(key, made);
    return made;
  }

  uint32_t size(Set set) const { return trees_[set].size; }
  size_t count() const { return trees_.size(); }  // of sets, and parts of them

 private:
  static constexpr size_t kLeaf = 64;

  struct Tree {
    uint64_t bits = 0;  // of a leaf
    Set left = 0;
    Set right = 0;
    uint32_t size = 0;
  };

  static uint64_t key_of(Set a, Set b) { return (uint64_t{a} << 32) | b; }

  Set leaf(uint64_t bits) {
    const auto [found, is_new] = leaves_.emplace(bits, static_cast<Set>(trees_.size()));
    if (is_new) trees_.push_back({.bits = bits, .size = static_cast<uint32_t>(std::popcount(bits))});
    return found->second;
  }

  Set tree(Set left, Set right) {
    const auto [found, is_new] = inner_.emplace(key_of(left, right), static_cast<Set>(trees_.size()));
    if (is_new) trees_.push_back({.left = left, .right = right, .size = size(left) + size(right)});
    return found->second;
  }

  size_t height_ = 0;
  std::vector<Tree> trees_ = {{}};
  std::unordered_map<uint64_t, Set> leaves_;
  std::unordered_map<uint64_t, Set> inner_;
  std::unordered_map<uint64_t, Set> unions_;
};

}  // namespace

void Compiler::form_blocks(std::vector<Unit>& units) {
  // Which values of other tasks each unit needs.
  NumberSets sets(2 * units.size());
  // Receiving depends on nothing: it is what blocks wait for. What fills gaps is waited for likewise, and so is
  // its end, so that it has blocks of its own.
  std::vector<NumberSets::Set> needs(units.size(), 0);
  std::vector<int64_t> filler_of(units.size());
  for (const auto& unit : units) filler_of[unit.number] = has_peers_ ? unit.filler() : 0;
  std::map<int64_t, uint32_t> fillers;  // the element of each; the next is that of its end
  std::map<NumberSets::Set, BlockUrgency> urgencies;
  uint32_t elements = 0;
  for (auto& unit : units) {
    uint32_t& mine = needs[unit.number];
    if (unit.is_receive()) {
      mine = sets.of(elements++);
    } else if (const int64_t filler = filler_of[unit.number]; filler != 0) {
      const auto [found, is_new] = fillers.emplace(filler, elements);
      if (is_new) elements += 2;
      mine = sets.united(mine, sets.of(found->second));
      urgencies[mine] = BlockUrgency::kFiller;
    } else if (unit.pass != nullptr) {
      urgencies.emplace(mine, BlockUrgency::kBackward);
    } else if (has_peers_ && waits_for_pass(*unit.node)) {
      // What a pass was the last to use is let go of when its block ends: before what waits for that.
      mine = sets.united(mine, sets.of(elements++));
    }
    unit.block = mine;
    for (const size_t follower : unit.followers) {
      uint32_t given = mine;
      if (const int64_t filler = filler_of[unit.number]; filler != 0 && filler_of[follower] != filler)
        given = sets.united(mine, sets.of(fillers.at(filler) + 1));
      needs[follower] = sets.united(needs[follower], given);
    }
  }
  if (elements == 0) {
    program_.blocks.resize(1);
    return;
  }
  // A block that another one needs, needs less: the smaller sets come first. Of the same size, the first.
  std::vector<NumberSets::Set> order = {0};
  for (const auto& unit : units) {
    if (!unit.is_receive()) order.push_back(unit.block);
  }
  std::sort(order.begin(), order.end(), [&](NumberSets::Set a, NumberSets::Set b) {
    return std::tuple(sets.size(a), a) < std::tuple(sets.size(b), b);
  });
  order.erase(std::unique(order.begin(), order.end()), order.end());
  std::vector<uint32_t> rank(sets.count());
  for (uint32_t i = 0; i < order.size(); ++i) rank[order[i]] = i;
  for (auto& unit : units) unit.block = unit.is_receive() ? 0 : rank[unit.block];
  std::stable_sort(units.begin(), units.end(), [](const Unit& a, const Unit& b) {
    return std::tuple(!a.is_receive(), a.block) < std::tuple(!b.is_receive(), b.block);
  });
  // One block is what takes nothing from other tasks.
  program_.blocks.resize(std::max<size_t>(order.size(), 2));
  for (const auto& [set, urgency] : urgencies) program_.blocks[rank[set]].urgency = urgency;
}

// As the forward passes of a pipeline do, so that not too many of them are ahead.
bool Compiler::waits_for_pass(const GraphNode& node) const {
  return std::any_of(node.control.begin(), node.control.end(),
                     [this](const GraphNode* before) { return pass_of_node_.contains(before->id); });
}

void Compiler::connect_blocks(const std::vector<Unit>& units) {
  if (program_.blocks.size() == 1) {
    program_.blocks.front().count = static_cast<uint32_t>(program_.instructions.size());
    return;
  }
  std::vector<const Unit*> by_number(units.size());
  for (const auto& unit : units) by_number[unit.number] = &unit;
  std::set<std::pair<uint32_t, uint32_t>> known;
  std::set<std::pair<size_t, uint32_t>> waiting;  // for a value of another task
  size_t received = 0;
  for (const auto& unit : units) {
    for (const size_t number : unit.followers) {
      const Unit& follower = *by_number[number];
      if (follower.is_receive()) continue;
      if (unit.is_receive()) {
        if (!waiting.emplace(received, follower.block).second) continue;
        program_.received[received].blocks.push_back(follower.block);
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
