#pragma once

// A plan says what one rank does in a collective operation, without any socket or memory: in each step it
// sends these blocks to those ranks, and receives those blocks from these, to reduce with its own or to
// overwrite them. It is a pure value of the algorithm, the rank and the topology; it does not know how many
// elements there are. Engines execute it.
//
//   A buffer is cut into `blocks` blocks, numbered from 0. A transfer moves a range of them.
//   Steps depend on each other by the blocks that they touch, and by nothing else: a send of a block waits
//   for the receives of that block in earlier steps; a receive waits for the sends of that block in earlier
//   steps and in its own. So what a step sends is what was there before the step.
//   Between two ranks, transfers match in their order.
//   Several receives of the same blocks in one step are reduced together, in the order of ranks.
//
// A stage is a run of steps over one medium: through memory that the ranks of a host share (every rank reads
// from the others), or over links (every rank streams to the others).

#include <vector>

#include "muster/collective/operation.h"
#include "muster/collective/topology.h"

namespace muster::detail {

enum class Medium : uint8_t { kMemory, kLinks };
enum class Action : uint8_t { kReduce, kOverwrite };

struct Blocks {
  int begin = 0;
  int end = 0;
  bool operator==(const Blocks&) const = default;
  bool overlaps(const Blocks& other) const { return begin < other.end && other.begin < end; }
};

struct Send {
  int peer = 0;
  Blocks blocks;
};

struct Receive {
  int peer = 0;
  Blocks blocks;
  Action action = Action::kOverwrite;
  bool final = false;  ///< after this step's reduction the blocks hold all ranks: where an average is divided
};

struct Step {
  std::vector<Send> sends;
  std::vector<Receive> receives;
};

struct Stage {
  Medium medium = Medium::kLinks;
  std::vector<Step> steps;
};

struct Plan {
  Algorithm algorithm = Algorithm::kRing;
  int blocks = 1;
  std::vector<Stage> stages;
};

/// Whether there is such a plan: all-reduce (and barrier) has all but chain and tree;
/// reduce-scatter and all-gather have ring and direct; broadcast and reduce have direct, chain and tree;
/// all-to-all has direct.
bool has_plan(Collective collective, Algorithm algorithm);

/// The plan of `rank`. On one host, kDirect and kExchange go through memory; between hosts, over links.
/// `root` is for broadcast and reduce. Throws InvalidArgument when there is no such plan.
Plan make_plan(Collective collective, Algorithm algorithm, int rank, const Topology& topology, int root = 0);

// What plans are made of, each in a file of its name.

/// Scatter-reduce and all-gather around a ring of `members` (ranks in ring order) over blocks first .. first
/// + n.
std::vector<Step> ring_all_reduce(const std::vector<int>& members, int position, int first);
std::vector<Step> ring_reduce_scatter(int rank, int ranks);
std::vector<Step> ring_all_gather(int rank, int ranks);

/// Halve the range and double the distance, then back: log2(n) steps each way, as many bytes as the ring.
std::vector<Step> halving_doubling(int rank, int ranks, int& blocks);

/// Swap everything at doubling distances: log2(n) steps, all bytes in each.
std::vector<Step> doubling(const std::vector<int>& members, int position);

/// Everyone to everyone at once.
Step direct_reduce(const std::vector<int>& members, int position);
Step direct_gather(const std::vector<int>& members, int position);
Step exchange(const std::vector<int>& members, int position, bool final);
Step direct_all_to_all(int rank, int ranks);
Step direct_broadcast(int rank, int ranks, int root);
Step direct_reduce_to_root(int rank, int ranks, int root);

/// Inside each host direct, between hosts a ring on each rank's share: every rank drives the network.
Plan hierarchical(int rank, const Topology& topology);

/// From rank to rank, or along a binomial tree.
std::vector<Step> chain_broadcast(int rank, int ranks, int root);
std::vector<Step> chain_reduce(int rank, int ranks, int root);
std::vector<Step> tree_broadcast(int rank, int ranks, int root);
std::vector<Step> tree_reduce(int rank, int ranks, int root);

}  // namespace muster::detail
