// The engine mpi under a real mpirun.

#include "engine_checks.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/collective/communicator_options.h"
#include "muster/testing/mpi_environment.h"
#include "muster/testing/operation_checks.h"
#include "muster/testing/process_cluster.h"
#include "muster/testing/test_main.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ProcessCluster;

const std::map<std::string, void (*)(Communicator&)> kChecks = {
    {"operations", testing::check_all_operations},
    {"bits", testing::check_same_bits},
    {"no-number", testing::check_no_number},
    {"in-flight", testing::check_operations_in_flight},
    {"split", testing::check_split},
    {"mismatch", testing::check_mismatch},
    {"deadline", testing::check_deadline}};

int number_of(const std::string& open_mpi, const std::string& mpich) {
  const auto environment = Environment::of_process();
  return environment.integer(open_mpi, 0).value_or(environment.integer(mpich, 0).value_or(0));
}

Communicator::Options options() {
  return {.rank = number_of("OMPI_COMM_WORLD_RANK", "PMI_RANK"),
          .size = std::max(number_of("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"), 1),
          .engine = "mpi",
          .timeout = 60s};
}

// A rank: it makes the checks that it is given, each in a communicator of its own.
int rank_main(const std::vector<std::string>& checks) {
  for (const auto& check : checks) {
    Communicator::Options wanted = options();
    if (check == "operations") wanted.segment = 256;  // many pieces
    Communicator communicator(wanted);
    kChecks.at(check)(communicator);
  }
  const bool passed = ::testing::UnitTest::GetInstance()->Passed();
  if (passed) fmt::print("rank {} passed\n", options().rank);
  return passed ? 0 : 1;
}

const testing::TaskRegistration kRank("rank", rank_main);

// A rank of a group that has more ranks than MPI.
int misplaced_main(const std::vector<std::string>&) {
  Communicator::Options wanted = options();
  ++wanted.size;
  try {
    const Communicator communicator(wanted);
  } catch (const InvalidArgument& error) {
    fmt::print("InvalidArgument: {}\n", error.what());
  }
  return 0;
}

const testing::TaskRegistration kMisplaced("misplaced", misplaced_main);

// Rank 1 fails while the others wait for it.
int failing_main(const std::vector<std::string>&) {
  Communicator communicator(options());
  communicator.barrier();
  if (communicator.rank() == 1) return 7;
  communicator.barrier();
  return 0;
}

const testing::TaskRegistration kFailing("failing", failing_main);

const testing::TaskRegistration kJob("job", testing::reduce_in_a_job);

ProcessCluster::Result run_under_mpi(int ranks, std::vector<std::string> task,
                                     const std::map<std::string, std::string>& settings = {}) {
  const testing::MpiEnvironment of_mpi;
  std::map<std::string, std::string> environment = settings;
  environment.merge(of_mpi.variables());
  environment.insert(
      {{"OMPI_MCA_mpi_yield_when_idle", "1"}, {"OMPI_MCA_btl_vader_single_copy_mechanism", "none"}});
  std::vector<std::string> command = {MUSTER_TEST_MPIEXEC, "-n", std::to_string(ranks), testing::self_path()};
  command.insert(command.end(), task.begin(), task.end());
  ProcessCluster cluster;
  return cluster.wait(cluster.start({.command = command, .environment = environment}), Deadline::after(55s));
}

class MpiEngineTest : public ::testing::TestWithParam<int> {
 protected:
  void expect_to_pass(std::vector<std::string> checks) {
    checks.insert(checks.begin(), "--task-main=rank");
    const auto result = run_under_mpi(GetParam(), checks);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    for (int rank = 0; rank < GetParam(); ++rank)
      EXPECT_THAT(result.output, HasSubstr(fmt::format("rank {} passed", rank)));
  }
};

TEST_P(MpiEngineTest, EveryOperationTypeCountAndMemoryGivesTheResult) {
  expect_to_pass({"operations"});
}

TEST_P(MpiEngineTest, CommunicatorsComeAndGoAndAreSplit) {
  expect_to_pass({"bits", "in-flight", "split", "bits", "no-number"});
}

INSTANTIATE_TEST_SUITE_P(Ranks, MpiEngineTest, ::testing::Values(1, 2, 3, 4));

TEST(MpiEngineFaults, AMismatchIsNamedOnAllRanks) {
  const auto result = run_under_mpi(3, {"--task-main=rank", "mismatch"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("rank 0 passed"), HasSubstr("rank 1 passed"), HasSubstr("rank 2 passed")));
}

// MPI can't be finalised then, and mpirun ends what still runs.
TEST(MpiEngineFaults, ARankThatDoesNotComeIsADeadlineAndTheGroupIsBroken) {
  const auto result = run_under_mpi(2, {"--task-main=rank", "deadline"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("rank 0 passed"));
}

TEST(MpiEngineFaults, ARankThatFailsEndsTheJob) {
  EXPECT_EQ(run_under_mpi(3, {"--task-main=failing"}).exit_code, 7);
}

TEST(MpiEngineFaults, AGroupThatIsNotTheWorldOfMpiIsRefused) {
  EXPECT_THAT(run_under_mpi(2, {"--task-main=misplaced"}).output,
              AllOf(HasSubstr("InvalidArgument: this is rank 1 of 3 in world, but 1 of 2 in MPI"),
                    HasSubstr("under mpirun or srun")));
}

TEST(MpiEngineJob, WorkersUnderMpirunReduceOverMpi) {
  const auto result = run_under_mpi(2, {"--task-main=job"}, {{"MUSTER_ENGINE", "mpi"}});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("2 ranks, as "));
}

}  // namespace
}  // namespace muster::detail

int main(int argc, char** argv) {
  return muster::detail::testing::run_tests(argc, argv);
}
