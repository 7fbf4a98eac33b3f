#include "muster/testing/process_cluster.h"

#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST(ProcessCluster, CollectsExitCodesAndOutput) {
  ProcessCluster cluster;
  const int good = cluster.start(
      {.command = {"sh", "-c", "echo out; echo err >&2; echo $NAME"}, .environment = {{"NAME", "x y"}}});
  const int bad = cluster.start({.command = {"sh", "-c", "exit 3"}});
  const int missing = cluster.start({.command = {"no-such-program"}});
  const auto result = cluster.wait(good, soon());
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.output, "out\nerr\nx y\n");
  EXPECT_EQ(cluster.wait(bad, soon()).exit_code, 3);
  EXPECT_EQ(cluster.wait(missing, soon()).exit_code, 127);
}

TEST(ProcessCluster, StopsContinuesAndKills) {
  ProcessCluster cluster;
  const int process = cluster.start({.command = {"sh", "-c", "echo ready; read line; sleep 100"}});
  cluster.wait_for_output(process, "ready", soon());
  cluster.signal(process, SIGSTOP);
  cluster.signal(process, SIGCONT);
  cluster.signal(process, SIGKILL);
  const auto result = cluster.wait(process, soon());
  EXPECT_EQ(result.signal, SIGKILL);
  EXPECT_EQ(result.exit_code, -1);
  EXPECT_FALSE(result.ok());
}

TEST(ProcessCluster, ADeadlineIsAFailureWithTheOutput) {
  ProcessCluster cluster;
  const int process = cluster.start({.command = {"sh", "-c", "echo stuck here; sleep 100"}});
  cluster.wait_for_output(process, "stuck", soon());
  try {
    cluster.wait(process, Deadline::after(50ms));
    FAIL();
  } catch (const DeadlineExceeded& error) {
    EXPECT_THAT(error.what(), HasSubstr("stuck here"));
  }
  EXPECT_THROW(cluster.wait_for_output(process, "never", soon()), DeadlineExceeded);
}

TEST(ProcessCluster, LeavesNothingBehind) {
  const std::string mark = "sleep 98765.4321";
  {
    ProcessCluster cluster;
    const int process = cluster.start({.command = {"sh", "-c", "sleep 98765.4321 & echo $!; wait"}});
    cluster.wait_for_output(process, "\n", soon());
    EXPECT_FALSE(processes_mentioning("98765.4321").empty());
  }
  EXPECT_TRUE(processes_mentioning("98765.4321").empty());
}

TEST(ProcessCluster, AnotherLaunchersIdentityIsNotInherited) {
  setenv("OMPI_COMM_WORLD_RANK", "1", 1);
  ProcessCluster cluster;
  const int process = cluster.start({.command = {"sh", "-c", "echo rank=$OMPI_COMM_WORLD_RANK."}});
  unsetenv("OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(cluster.wait(process, soon()).output, "rank=.\n");
}

}  // namespace
}  // namespace muster::detail::testing
