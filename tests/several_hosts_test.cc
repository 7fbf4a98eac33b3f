// Jobs over several hosts, which are network namespaces (see muster/testing/hosts.h).

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/testing/hosts.h"
#include "muster/testing/process_cluster.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ProcessCluster;
using testing::soon;

class SeveralHostsTest : public ::testing::Test {
 protected:
  int node(int host, std::vector<std::string> more = {}) {
    std::vector<std::string> command = {
        testing::beside_self("muster"), "run",           "--workers",     "2", "--nnodes", "2", "--node-rank",
        std::to_string(host),           "--coordinator", "10.77.0.1:4321"};
    command.insert(command.end(), more.begin(), more.end());
    command.insert(command.end(), {"--", "hello_cluster"});
    return cluster.start({.command = hosts.on(host, command), .environment = {{"MUSTER_SECRET", "s"}}});
  }
  testing::Hosts hosts{2};
  ProcessCluster cluster;
};

TEST_F(SeveralHostsTest, TasksGiveTheAddressThatReachesTheOthers) {
  const int first = node(0);
  const int second = node(1);
  const auto result = cluster.wait(first, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(cluster.wait(second, soon()).exit_code, 0);
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("worker/0 is at 10.77.0.1:"), HasSubstr("worker/1 is at 10.77.0.2:")));
}

TEST_F(SeveralHostsTest, AnInterfaceIsChosenByExclusion) {
  const int first = node(0, {"--interface", "^lo"});
  const int second = node(1, {"--interface", "eth"});
  const auto result = cluster.wait(first, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(cluster.wait(second, soon()).exit_code, 0);
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("worker/0 is at 10.77.0.1:"), HasSubstr("worker/1 is at 10.77.0.2:")));
}

TEST_F(SeveralHostsTest, ALoopbackAddressIsAnErrorThatNamesTheTask) {
  const int first = node(0);
  const int second = node(1, {"--interface", "lo"});
  const auto result = cluster.wait(first, soon());
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, AllOf(HasSubstr("the job runs on 2 hosts"), HasSubstr("worker/1"),
                                   HasSubstr("loopback address 127.0.0.1:")));
  EXPECT_NE(cluster.wait(second, soon()).exit_code, 0);
}

}  // namespace
}  // namespace muster::detail

int main(int argc, char** argv) {
  return muster::detail::testing::run_tests_with_hosts(argc, argv);
}
