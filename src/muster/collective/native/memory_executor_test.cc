#include "muster/collective/native/memory_executor.h"

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/collective/native/native_test.h"
#include "muster/testing/thread_cluster.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using testing::all_reduce_for_test;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::RankForTest;
using testing::ThreadCluster;

constexpr size_t kSmallSegment = 256;

// The ranks of one host, as threads that share their arenas.
class MemoryExecutorTest : public ::testing::TestWithParam<int> {
 protected:
  MemoryExecutorTest() {
    std::vector<HostPeer> peers;
    for (int rank = 0; rank < ranks(); ++rank) {
      memories_.push_back(std::make_unique<HostMemory>(size_t{16} << 20));
      auto* state = new (memories_.back()->allocate(RankState::bytes(ranks()), ranks())) RankState;
      peers.push_back({.rank = rank, .arena = memories_.back()->arena(), .state = state});
    }
    for (int rank = 0; rank < ranks(); ++rank) {
      const auto index = static_cast<size_t>(rank);
      groups_.push_back(std::make_unique<HostGroup>(*memories_[index], peers, rank, /*cores=*/2));
      executors_.push_back(std::make_unique<MemoryExecutor>(*groups_[index], kSmallSegment));
    }
  }

  static int ranks() { return GetParam(); }
  MemoryExecutor& executor(int rank) { return *executors_[static_cast<size_t>(rank)]; }
  HostMemory& memory(int rank) { return *memories_[static_cast<size_t>(rank)]; }

  static Plan plan_of(Algorithm algorithm, int rank) {
    return make_plan(Collective::kAllReduce, algorithm, rank, Topology::one_host(ranks()));
  }

  // What a rank brings to an element in a round, and what all of them make. Exact in float.
  static float contribution(int rank, size_t at, int round) {
    return static_cast<float>(rank + 1) * static_cast<float>((at + static_cast<size_t>(round)) % 1000);
  }
  static float sum(size_t at, int round) {
    float all = 0;
    for (int rank = 0; rank < ranks(); ++rank) all += contribution(rank, at, round);
    return all;
  }
  static void fill(float* data, size_t count, int rank, int round) {
    for (size_t i = 0; i < count; ++i) data[i] = contribution(rank, i, round);
  }
  static void expect_sum(const float* data, size_t count, int round) {
    for (size_t i = 0; i < count; ++i) {
      if (data[i] == sum(i, round)) continue;
      raise<DataLoss>("element {} of {} is {} in round {}, not {}", i, count, data[i], round, sum(i, round));
    }
  }

 private:
  std::vector<std::unique_ptr<HostMemory>> memories_;
  std::vector<std::unique_ptr<HostGroup>> groups_;
  std::vector<std::unique_ptr<MemoryExecutor>> executors_;
};

// Sizes below, at and above what fits each line of a header slot; again and again, with other values each
// time, since a line that is read too early has those of the operation before the last.
TEST_P(MemoryExecutorTest, AHeaderSlotBringsAllOfItsLines) {
  const auto errors = ThreadCluster(ranks(), 60s).run([&](int rank) {
    RankForTest self(ranks());
    const Plan plan = plan_of(Algorithm::kExchange, rank);
    for (const size_t count : {1U, 7U, 8U, 9U, 16U, 24U, 25U, 64U, 128U, 136U, 137U, 1000U, 4096U}) {
      std::vector<float> data(count);
      for (int round = 0; round < 100; ++round) {
        fill(data.data(), count, rank, round);
        const Operation operation = all_reduce_for_test(data);
        executor(rank).run(self.context(operation), plan);
        expect_sum(data.data(), count, round);
      }
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(MemoryExecutorTest, ArenasAndOrdinaryMemoryGiveTheSameSums) {
  for (const size_t in_arenas : {0U, 1U, 16U}) {  // ranks
    const auto errors = ThreadCluster(ranks(), 60s).run([&](int rank) {
      RankForTest self(ranks());
      const Plan plan = plan_of(Algorithm::kDirect, rank);
      for (const size_t count : {0U, 1U, 5U, 64U, 200U, 5000U}) {
        std::vector<float> ordinary(count);
        auto* data = ordinary.data();
        const auto arena = memory(rank).arena();
        void* const shared = arena->allocate(std::max<size_t>(count, 1) * sizeof(float));
        if (static_cast<size_t>(rank) < in_arenas) data = static_cast<float*>(shared);
        for (int round = 0; round < 5; ++round) {
          fill(data, count, rank, round);
          const Operation operation = {
              .collective = Collective::kAllReduce, .in = data, .out = data, .count = count};
          executor(rank).run(self.context(operation), plan);
          expect_sum(data, count, round);
        }
        arena->free(shared);
      }
    });
    EXPECT_THAT(errors, Each("")) << in_arenas << " in arenas";
  }
}

TEST_P(MemoryExecutorTest, RanksThatCalledDifferentThingsLearnWhoCalledWhat) {
  const auto errors = ThreadCluster(ranks(), 60s).run([&](int rank) {
    RankForTest self(ranks());
    std::vector<float> data(rank == 0 ? 3 : 40);  // one line of a header slot, and several
    const Operation operation = all_reduce_for_test(data);
    executor(rank).run(self.context(operation), plan_of(Algorithm::kExchange, rank));
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 0 (host h, pid 100)"), HasSubstr("float32 x 3,"),
                                 HasSubstr("float32 x 40,"))));
}

INSTANTIATE_TEST_SUITE_P(Ranks, MemoryExecutorTest, ::testing::Values(2, 3));

}  // namespace
}  // namespace muster::detail
