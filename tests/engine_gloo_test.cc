// The engine gloo, its ranks as threads and as processes.

#include <atomic>
#include <thread>

#include "engine_checks.h"
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/collective/communicator_options.h"
#include "muster/testing/operation_checks.h"
#include "muster/testing/process_cluster.h"
#include "muster/testing/rank_group.h"
#include "muster/testing/test_main.h"
#include "muster/testing/thread_cluster.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::ProcessCluster;
using testing::RankGroup;
using testing::ThreadCluster;
using testing::ThreadRendezvous;

const testing::TaskRegistration kJob("job", testing::reduce_in_a_job);

RankGroup::Options group_of(int ranks) {
  return {.ranks = ranks, .communicator = {.engine = "gloo", .timeout = 50s}, .limit = 55s};
}

class GlooEngineTest : public ::testing::TestWithParam<int> {};

TEST_P(GlooEngineTest, EveryOperationTypeCountAndMemoryGivesTheResult) {
  EXPECT_THAT(RankGroup(group_of(GetParam())).run(testing::check_all_operations), Each(""));
}

TEST_P(GlooEngineTest, ResultsAreTheSameBitsOnAllRanks) {
  EXPECT_THAT(RankGroup(group_of(GetParam())).run(testing::check_same_bits), Each(""));
}

TEST_P(GlooEngineTest, WhatIsNotANumberIsInTheResult) {
  EXPECT_THAT(RankGroup(group_of(GetParam())).run(testing::check_no_number), Each(""));
}

TEST_P(GlooEngineTest, ManyOperationsAndMessagesAreInFlight) {
  EXPECT_THAT(RankGroup(group_of(GetParam())).run(testing::check_operations_in_flight), Each(""));
}

TEST_P(GlooEngineTest, IsSplit) {
  EXPECT_THAT(RankGroup(group_of(GetParam())).run(testing::check_split), Each(""));
}

// gloo works in threads of its own, which are in no InferenceMode.
TEST_P(GlooEngineTest, CarriesWhatIsCalledInInferenceMode) {
  EXPECT_THAT(RankGroup(group_of(GetParam())).run([](Communicator& comm) {
    const c10::InferenceMode inference;
    testing::check_all_operations(comm);
  }),
              Each(""));
}

INSTANTIATE_TEST_SUITE_P(Ranks, GlooEngineTest, ::testing::Values(1, 2, 3, 4));

TEST(GlooEngine, TheTopologyIsThatOfTheRanks) {
  RankGroup::Options options = group_of(3);
  options.hosts = {0, 1, 0};
  const auto errors = RankGroup(options).run([](Communicator& communicator) {
    EXPECT_EQ(communicator.topology().hosts(), 2);
    EXPECT_EQ(communicator.topology().host_of(2), 0);
    EXPECT_EQ(communicator.explain({}), "gloo through c10d");
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(GlooEngine, RefusesWhatOnlyTheNativeEngineHas) {
  EXPECT_THROW(Communicator({.engine = "gloo", .algorithm = Algorithm::kRing}), InvalidArgument);
  EXPECT_THROW(Communicator({.engine = "gloo", .wire_dtype = DType::kFloat16}), InvalidArgument);
}

class GlooEngineFaults : public ::testing::Test {
 protected:
  // Nobody leaves before all are done: leaving is an error for the others too.
  std::vector<std::string> run(int ranks, const std::function<void(Communicator&)>& body) {
    ThreadRendezvous rendezvous(ranks);
    std::atomic<int> ended = 0;
    return ThreadCluster(ranks, 55s).run([&](int rank) {
      Communicator communicator(RankGroup::options_of(group_of(ranks), rank, rendezvous));
      body(communicator);
      ++ended;
      for (const auto deadline = Deadline::after(20s); ended < ranks && !deadline.expired();)
        std::this_thread::sleep_for(1ms);
    });
  }
};

TEST_F(GlooEngineFaults, AMismatchIsNamedOnAllRanks) {
  for (int repetition = 0; repetition < 10; ++repetition)
    EXPECT_THAT(run(3, testing::check_mismatch), Each(""));
}

TEST_F(GlooEngineFaults, ARankThatDoesNotComeIsADeadlineAndTheGroupIsBroken) {
  EXPECT_THAT(run(2, testing::check_deadline), Each(""));
}

TEST_F(GlooEngineFaults, AnAbortIsNoticedByTheOthers) {
  const auto errors = run(3, [](Communicator& communicator) {
    communicator.barrier();
    if (communicator.rank() == 1) {
      communicator.abort("enough");
      EXPECT_THROW(communicator.barrier(), Aborted);
    } else {
      EXPECT_THROW(communicator.barrier(), PeerLost);
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_F(GlooEngineFaults, AMessageOfAnotherSizeIsRefused) {
  const auto errors = run(3, [](Communicator& communicator) {
    float data[2] = {};
    if (communicator.rank() == 1) {
      EXPECT_THROW(communicator.receive(data, 2, DType::kFloat32, 0), InvalidArgument);
    } else if (communicator.rank() == 0) {
      const auto send_and_wait = [&] {
        communicator.send(data, 1, DType::kFloat32, 1);
        communicator.receive(data, 1, DType::kFloat32, 1);
      };
      EXPECT_THROW(send_and_wait(), PeerLost);
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_F(GlooEngineFaults, AReceiveThatNobodySendsEndsWithTheCommunicator) {
  float data = 0;
  const auto errors = run(3, [&](Communicator& communicator) {
    communicator.barrier();
    if (communicator.rank() == 0) communicator.receive_async(&data, 1, DType::kFloat32, 1);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(GlooEngineJob, WorkersReduceOverGloo) {
  ProcessCluster cluster;
  const int launcher = cluster.start({.command = {testing::beside_self("muster"), "run", "--workers", "2",
                                                  "--", testing::self_path(), "--task-main=job"},
                                      .environment = {{"MUSTER_ENGINE", "gloo"}}});
  const auto result = cluster.wait(launcher, Deadline::after(55s));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("2 ranks, gloo through c10d"));
}

}  // namespace
}  // namespace muster::detail

int main(int argc, char** argv) {
  return muster::detail::testing::run_tests(argc, argv);
}
