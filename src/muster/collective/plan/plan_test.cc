#include "muster/collective/plan/plan.h"

#include <algorithm>
#include <array>
#include <deque>
#include <random>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

// Ranks that execute their plans by messages that are handed over only when both sides are ready (no buffer
// in between), in an order drawn by a generator. What is received to be reduced waits beside the buffer until
// the sends of its step have gone, as in an engine. A block's value is how often each rank's contribution is
// in it.
class Simulation {
 public:
  static constexpr int kMostRanks = 16;
  using Value = std::array<int, kMostRanks>;

  static Value once_of_all(int ranks) {
    Value value{};
    std::fill_n(value.begin(), ranks, 1);
    return value;
  }

  Simulation(Collective collective, Algorithm algorithm, const Topology& topology, int root)
      : collective_(collective), ranks_(topology.size()), queues_(static_cast<size_t>(2 * ranks_ * ranks_)) {
    for (int rank = 0; rank < ranks_; ++rank) {
      Rank& state = states_.emplace_back();
      const Plan plan = make_plan(collective, algorithm, rank, topology, root);
      blocks_ = plan.blocks;
      int number = 0;
      for (const auto& stage : plan.stages) {
        for (const auto& step : stage.steps) {
          for (const auto& send : step.sends) {
            state.transfers.push_back(
                {.send = true, .step = number, .peer = send.peer, .blocks = send.blocks});
            if (stage.medium == Medium::kMemory) {
              EXPECT_EQ(topology.host_of(rank), topology.host_of(send.peer));
            }
          }
          for (const auto& receive : step.receives) {
            state.transfers.push_back({.send = false,
                                       .step = number,
                                       .peer = receive.peer,
                                       .blocks = receive.blocks,
                                       .action = receive.action,
                                       .final = receive.final});
          }
          ++number;
        }
      }
      for (auto& transfer : state.transfers) queue(rank, transfer.peer, transfer.send).push_back(&transfer);
      state.values.assign(static_cast<size_t>(blocks_), Value{});
      for (int block = 0; block < blocks_; ++block) {
        const bool has = collective == Collective::kAllGather   ? block == rank
                         : collective == Collective::kBroadcast ? rank == root
                                                                : true;
        if (has) state.values[static_cast<size_t>(block)][static_cast<size_t>(rank)] = 1;
      }
      state.received.assign(static_cast<size_t>(blocks_), -1);
    }
  }

  // True when all transfers were made.
  bool run(unsigned seed) {
    std::mt19937 random(seed);
    for (;;) {
      struct Pair {
        int from;
        Transfer* send;
        int to;
        Transfer* receive;
      };
      std::vector<Pair> possible;
      for (int rank = 0; rank < ranks_; ++rank) {
        for (int peer = 0; peer < ranks_; ++peer) {
          Transfer* send = next(rank, peer, true);
          Transfer* receive = next(peer, rank, false);
          if (send == nullptr || receive == nullptr) continue;
          if (ready(rank, *send) && ready(peer, *receive)) possible.push_back({rank, send, peer, receive});
        }
      }
      if (possible.empty()) break;
      const Pair& drawn = possible[random() % possible.size()];
      transfer(drawn.from, *drawn.send, drawn.to, *drawn.receive);
    }
    for (const auto& state : states_) {
      for (const auto& transfer : state.transfers) {
        if (!(transfer.send ? transfer.done : transfer.applied)) return false;
      }
    }
    return true;
  }

  const Value& value(int rank, int block) const {
    return states_[static_cast<size_t>(rank)].values[static_cast<size_t>(block)];
  }
  int received_from(int rank, int block) const {
    return states_[static_cast<size_t>(rank)].received[static_cast<size_t>(block)];
  }
  int blocks() const { return blocks_; }
  bool somebody_completed() const { return completed_; }

 private:
  struct Transfer {
    bool send = false;
    int step = 0;
    int peer = 0;
    Blocks blocks;
    Action action = Action::kOverwrite;
    bool final = false;
    bool done = false;     // handed over
    bool applied = false;  // a receive: in the buffer
    std::vector<Value> held;
  };
  struct Rank {
    std::vector<Transfer> transfers;
    std::vector<Value> values;
    std::vector<int> received;  // all-to-all: whose data is in the block
  };

  std::deque<Transfer*>& queue(int rank, int peer, bool send) {
    return queues_[static_cast<size_t>(2 * (rank * ranks_ + peer) + (send ? 1 : 0))];
  }

  Transfer* next(int rank, int peer, bool send) {
    auto& transfers = queue(rank, peer, send);
    while (!transfers.empty() && transfers.front()->done) transfers.pop_front();
    return transfers.empty() ? nullptr : transfers.front();
  }

  bool ready(int rank, const Transfer& transfer) {
    if (collective_ == Collective::kAllToAll) return true;  // in and out are different buffers
    for (const auto& other : states_[static_cast<size_t>(rank)].transfers) {
      if (&other == &transfer || !other.blocks.overlaps(transfer.blocks)) continue;
      if (other.send ? other.done : other.applied) continue;
      if (!other.send && other.step < transfer.step) return false;
      if (!transfer.send && other.send && other.step < transfer.step) return false;
      if (!transfer.send && other.send && other.step == transfer.step &&
          transfer.action == Action::kOverwrite)
        return false;
    }
    return true;
  }

  // Applies what was held beside the buffer and can go into it now.
  void apply(int rank) {
    Rank& state = states_[static_cast<size_t>(rank)];
    const Value once = once_of_all(ranks_);
    for (auto& receive : state.transfers) {
      if (receive.send || !receive.done || receive.applied) continue;
      const bool blocked =
          std::any_of(state.transfers.begin(), state.transfers.end(), [&](const Transfer& other) {
            return other.send && !other.done && other.step == receive.step &&
                   other.blocks.overlaps(receive.blocks);
          });
      if (blocked) continue;
      receive.applied = true;
      for (size_t i = 0; i < receive.held.size(); ++i) {
        Value& kept = state.values[static_cast<size_t>(receive.blocks.begin) + i];
        for (size_t from = 0; from < kept.size(); ++from) kept[from] += receive.held[i][from];
        // The last of several receives of a step completes the block for all of them.
        if (!receive.final) {
          EXPECT_NE(kept, once) << "complete, and the plan does not say so";
        }
        completed_ |= receive.final;
      }
    }
  }

  void transfer(int from, Transfer& send, int to, Transfer& receive) {
    EXPECT_EQ(send.blocks.end - send.blocks.begin, receive.blocks.end - receive.blocks.begin);
    for (int i = 0; i < send.blocks.end - send.blocks.begin; ++i) {
      const auto source = static_cast<size_t>(send.blocks.begin + i);
      const auto target = static_cast<size_t>(receive.blocks.begin + i);
      if (collective_ == Collective::kAllToAll) {
        EXPECT_EQ(static_cast<int>(source), to);
        states_[static_cast<size_t>(to)].received[target] = from;
        continue;
      }
      EXPECT_EQ(source, target);
      const Value& sent = states_[static_cast<size_t>(from)].values[source];
      if (receive.action == Action::kOverwrite) {
        states_[static_cast<size_t>(to)].values[target] = sent;
      } else {
        receive.held.push_back(sent);
      }
    }
    send.done = receive.done = true;
    receive.applied = receive.action == Action::kOverwrite;
    apply(from);
    apply(to);
  }

  const Collective collective_;
  const int ranks_;
  int blocks_ = 0;
  std::deque<Rank> states_;
  std::vector<std::deque<Transfer*>> queues_;  // of each rank with each peer: receives, then sends
  bool completed_ = false;
};

std::vector<Topology> topologies(int ranks) {
  std::vector<Topology> all = {Topology::one_host(ranks), Topology::one_rank_per_host(ranks)};
  for (const int hosts : {2, 3, 4}) {
    if (ranks <= hosts) continue;
    std::vector<int> in_turn;
    std::vector<int> in_blocks;
    std::vector<int> uneven;
    for (int rank = 0; rank < ranks; ++rank) {
      in_turn.push_back(rank % hosts);
      in_blocks.push_back(rank * hosts / ranks);
      uneven.push_back(std::max(0, rank - (ranks - hosts)));
    }
    all.insert(all.end(), {Topology(in_turn), Topology(in_blocks), Topology(uneven)});
  }
  return all;
}

constexpr std::array kAllAlgorithms = {
    Algorithm::kRing,   Algorithm::kHalvingDoubling, Algorithm::kDoubling, Algorithm::kExchange,
    Algorithm::kDirect, Algorithm::kHierarchical,    Algorithm::kChain,    Algorithm::kTree};

// Runs `check` on every algorithm, number of ranks and topology that the collective has, in several orders.
template <typename Check>
void for_every_plan(Collective collective, bool rooted, const Check& check) {
  for (const auto algorithm : kAllAlgorithms) {
    if (!has_plan(collective, algorithm)) continue;
    for (int ranks = 1; ranks <= Simulation::kMostRanks; ++ranks) {
      for (const auto& topology : topologies(ranks)) {
        for (int root = 0; root < (rooted ? ranks : 1); root += rooted ? 3 : 1) {
          for (unsigned seed = 1; seed <= 2; ++seed) {
            SCOPED_TRACE(fmt::format("{} by {}, {} ranks on {} hosts, root {}, order {}", name_of(collective),
                                     name_of(algorithm), ranks, topology.hosts(), root, seed));
            Simulation simulation(collective, algorithm, topology, root);
            ASSERT_TRUE(simulation.run(seed)) << "some transfers can't be made: the plan locks up";
            check(simulation, ranks, root);
          }
        }
      }
    }
  }
}

TEST(AllReducePlan, EveryBlockIsReducedOnceFromEveryRankOnEveryRank) {
  for_every_plan(Collective::kAllReduce, false, [](const Simulation& simulation, int ranks, int) {
    EXPECT_EQ(simulation.somebody_completed(), ranks > 1) << "the plan says where a sum is complete";
    for (int rank = 0; rank < ranks; ++rank) {
      for (int block = 0; block < simulation.blocks(); ++block) {
        ASSERT_EQ(simulation.value(rank, block), Simulation::once_of_all(ranks))
            << "rank " << rank << " block " << block;
      }
    }
  });
}

TEST(ReduceScatterPlan, EveryRankHasItsOwnBlockReducedOnceFromEveryRank) {
  for_every_plan(Collective::kReduceScatter, false, [](const Simulation& simulation, int ranks, int) {
    for (int rank = 0; rank < ranks; ++rank)
      ASSERT_EQ(simulation.value(rank, rank), Simulation::once_of_all(ranks));
  });
}

TEST(AllGatherPlan, EveryRankHasTheBlockOfEveryRank) {
  for_every_plan(Collective::kAllGather, false, [](const Simulation& simulation, int ranks, int) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (int block = 0; block < ranks; ++block) {
        Simulation::Value expected{};
        expected[static_cast<size_t>(block)] = 1;
        ASSERT_EQ(simulation.value(rank, block), expected);
      }
    }
  });
}

TEST(BroadcastPlan, EveryRankHasWhatTheRootHad) {
  for_every_plan(Collective::kBroadcast, true, [](const Simulation& simulation, int ranks, int root) {
    Simulation::Value expected{};
    expected[static_cast<size_t>(root)] = 1;
    for (int rank = 0; rank < ranks; ++rank) ASSERT_EQ(simulation.value(rank, 0), expected);
  });
}

TEST(ReducePlan, TheRootHasEveryRankOnce) {
  for_every_plan(Collective::kReduce, true, [](const Simulation& simulation, int ranks, int root) {
    ASSERT_EQ(simulation.value(root, 0), Simulation::once_of_all(ranks));
  });
}

TEST(AllToAllPlan, EveryRankHasFromEachOtherTheBlockMeantForIt) {
  for_every_plan(Collective::kAllToAll, false, [](const Simulation& simulation, int ranks, int) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (int block = 0; block < ranks; ++block) {
        if (block == rank) continue;
        ASSERT_EQ(simulation.received_from(rank, block), block);
      }
    }
  });
}

TEST(RingPlan, SendsAndReceivesTheBlocksOfTheTextbook) {
  for (int n = 2; n <= 16; ++n) {
    for (int j = 0; j < n; ++j) {
      const Plan plan =
          make_plan(Collective::kAllReduce, Algorithm::kRing, j, Topology::one_rank_per_host(n));
      const auto& steps = plan.stages.at(0).steps;
      ASSERT_EQ(steps.size(), static_cast<size_t>(2 * (n - 1)));
      for (int i = 0; i < n - 1; ++i) {
        const Step& step = steps[static_cast<size_t>(i)];
        EXPECT_EQ(step.sends.at(0).peer, (j + 1) % n);
        EXPECT_EQ(step.sends.at(0).blocks.begin, (j - i + n) % n);
        EXPECT_EQ(step.receives.at(0).peer, (j - 1 + n) % n);
        EXPECT_EQ(step.receives.at(0).blocks.begin, (j - i - 1 + 2 * n) % n);
      }
    }
  }
}

TEST(RingPlan, EveryRankSendsTheLeastThereIs) {
  for (int n = 2; n <= 16; ++n) {
    const Plan plan =
        make_plan(Collective::kAllReduce, Algorithm::kRing, n / 2, Topology::one_rank_per_host(n));
    int sent = 0;
    for (const auto& step : plan.stages[0].steps) {
      for (const auto& send : step.sends) sent += send.blocks.end - send.blocks.begin;
    }
    EXPECT_EQ(sent, 2 * (n - 1)) << "of n blocks";
  }
}

TEST(DoublingPlan, TakesLogarithmicallyManySteps) {
  const Topology topology = Topology::one_rank_per_host(16);
  EXPECT_EQ(make_plan(Collective::kAllReduce, Algorithm::kDoubling, 5, topology).stages[0].steps.size(), 4U);
  EXPECT_EQ(
      make_plan(Collective::kAllReduce, Algorithm::kHalvingDoubling, 5, topology).stages[0].steps.size(), 8U);
}

TEST(HierarchicalPlan, EveryRankOfAUniformTopologyDrivesTheNetwork) {
  const Topology topology({0, 0, 0, 1, 1, 1});
  for (int rank = 0; rank < 6; ++rank) {
    const Plan plan = make_plan(Collective::kAllReduce, Algorithm::kHierarchical, rank, topology);
    int blocks = 0;
    for (const auto& step : plan.stages.at(1).steps) {
      for (const auto& send : step.sends) blocks += send.blocks.end - send.blocks.begin;
    }
    EXPECT_EQ(blocks, 2) << "of 6: an equal share for each";
  }
}

TEST(MakePlan, WhatThereIsNotIsAnError) {
  EXPECT_THROW(make_plan(Collective::kAllToAll, Algorithm::kRing, 0, Topology::one_host(2)), InvalidArgument);
  EXPECT_THROW(make_plan(Collective::kBroadcast, Algorithm::kHierarchical, 0, Topology::one_host(2)),
               InvalidArgument);
}

}  // namespace
}  // namespace muster::detail
