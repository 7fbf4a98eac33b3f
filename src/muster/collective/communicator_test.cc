#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/log.h"
#include "muster/base/mutex.h"
#include "muster/collective/communicator_options.h"
#include "muster/testing/operation_checks.h"
#include "muster/testing/rank_group.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using testing::RankGroup;

struct Grid {
  std::string name;
  int ranks;
  std::vector<int> hosts;
  Algorithm algorithm = Algorithm::kAuto;
  bool shared_memory = true;
  int sockets = 1;
};

void PrintTo(const Grid& grid, std::ostream* out) {
  *out << grid.name;
}

class CommunicatorGrid : public ::testing::TestWithParam<Grid> {
 protected:
  // Segments are tiny, so that small buffers take many.
  RankGroup group() const {
    const Grid& grid = GetParam();
    return RankGroup({.ranks = grid.ranks,
                      .hosts = grid.hosts,
                      .communicator = {.algorithm = grid.algorithm,
                                       .shared_memory = grid.shared_memory,
                                       .sockets = grid.sockets,
                                       .segment = 256},
                      .limit = 100s});
  }
};

TEST_P(CommunicatorGrid, EveryOperationTypeCountAndMemoryGivesTheResult) {
  EXPECT_THAT(group().run(testing::check_all_operations), Each(""));
}

TEST_P(CommunicatorGrid, ResultsAreTheSameBitsOnAllRanksAndEveryTime) {
  const int ranks = GetParam().ranks;
  std::vector<std::vector<uint32_t>> results(static_cast<size_t>(ranks));
  std::vector<uint32_t> first;
  for (int repetition = 0; repetition < 2; ++repetition) {
    for (auto& result : results) result.clear();
    const auto errors = group().run([&](Communicator& comm) {
      auto& result = results[static_cast<size_t>(comm.rank())];
      for (const size_t count : {100, 5000}) {
        const auto part = testing::inexact_average(comm, count);
        result.insert(result.end(), part.begin(), part.end());
      }
    });
    ASSERT_THAT(errors, Each(""));
    if (repetition == 0) first = results[0];
    for (const auto& result : results) EXPECT_EQ(result, first);
  }
}

TEST(AnAlgorithm, ThatNoCollectiveWentByIsSaidToHaveHadNoEffect) {
  const auto said = [](bool broadcasts) {
    Mutex mutex;
    std::string log;
    set_log_sink([&](std::string_view line) {
      const MutexLock lock(mutex);
      log += line;
    });
    const RankGroup group({.ranks = 2, .communicator = {.algorithm = Algorithm::kTree}});
    EXPECT_THAT(group.run([&](Communicator& comm) {
      std::vector<float> data(1000, 1);
      comm.all_reduce(data.data(), data.size(), DType::kFloat32, ReduceOp::kSum);
      if (broadcasts) comm.broadcast(data.data(), data.size(), DType::kFloat32, 0);
      comm.barrier();
    }),
                Each(""));
    set_log_sink({});
    return log;
  };
  EXPECT_THAT(said(/*broadcasts=*/false),
              ::testing::HasSubstr("--algorithm tree had no effect: all_reduce went by exchange"));
  EXPECT_THAT(said(/*broadcasts=*/true), ::testing::Not(::testing::HasSubstr("--algorithm")));
}

std::vector<Grid> grids() {
  std::vector<Grid> all;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    all.push_back({fmt::format("memory_{}", ranks), ranks, {}});
    if (ranks == 1) continue;
    std::vector<int> apart(static_cast<size_t>(ranks));
    std::iota(apart.begin(), apart.end(), 0);
    all.push_back({fmt::format("tcp_{}", ranks), ranks, apart});
  }
  all.push_back({"shared_memory_off_3", 3, {}, Algorithm::kAuto, false});
  all.push_back({"several_sockets_3", 3, {0, 1, 2}, Algorithm::kAuto, true, 3});
  for (const int ranks : {3, 4}) {
    std::vector<int> apart(static_cast<size_t>(ranks));
    std::iota(apart.begin(), apart.end(), 0);
    for (const auto algorithm :
         {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kDoubling, Algorithm::kExchange,
          Algorithm::kDirect, Algorithm::kHierarchical, Algorithm::kChain, Algorithm::kTree}) {
      std::string name = name_of(algorithm);
      std::replace(name.begin(), name.end(), '-', '_');
      all.push_back({fmt::format("{}_over_tcp_{}", name, ranks), ranks, apart, algorithm});
      all.push_back({fmt::format("{}_in_host_{}", name, ranks), ranks, {}, algorithm});
    }
  }
  for (const auto& [name, hosts] :
       std::vector<std::pair<std::string, std::vector<int>>>{{"two_by_two", {0, 0, 1, 1}},
                                                             {"in_turn", {0, 1, 0, 1}},
                                                             {"uneven", {0, 0, 0, 1, 1}},
                                                             {"one_alone", {0, 1, 1}}}) {
    const auto ranks = static_cast<int>(hosts.size());
    all.push_back({"mixed_" + name, ranks, hosts});
    all.push_back({"mixed_hierarchical_" + name, ranks, hosts, Algorithm::kHierarchical});
    all.push_back({"mixed_ring_" + name, ranks, hosts, Algorithm::kRing});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Native, CommunicatorGrid, ::testing::ValuesIn(grids()),
                         [](const auto& grid) { return grid.param.name; });

}  // namespace
}  // namespace muster::detail
