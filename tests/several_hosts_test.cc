// Several hosts, as network namespaces with a virtual cable between them. It makes and removes its own
// namespaces. Without root it does so inside a user namespace of its own, where it is root.

#include <unistd.h>

#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/environment.h"
#include "muster/testing/process_cluster.h"
#include "muster/testing/test_main.h"

namespace muster {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ProcessCluster;

Deadline soon() {
  return Deadline::after(90s);
}

std::string beside(const std::string& name) {
  return std::filesystem::path(testing::self_path()).parent_path() / name;
}

// Two hosts, 10.77.0.1 and 10.77.0.2, that reach each other and nothing else.
class TwoHosts {
 public:
  TwoHosts() {
    ip({"netns", "add", name(0)});
    ip({"netns", "add", name(1)});
    ip({"link", "add", "eth0", "netns", name(0), "type", "veth", "peer", "name", "eth0", "netns", name(1)});
    for (int host = 0; host < 2; ++host) {
      ip({"-n", name(host), "address", "add", fmt::format("10.77.0.{}/24", host + 1), "dev", "eth0"});
      ip({"-n", name(host), "link", "set", "eth0", "up"});
      ip({"-n", name(host), "link", "set", "lo", "up"});
    }
  }
  ~TwoHosts() {
    ip({"netns", "delete", name(0)});
    ip({"netns", "delete", name(1)});
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  static std::vector<std::string> on(int host, std::vector<std::string> command) {
    command.insert(command.begin(), {"ip", "netns", "exec", name(host)});
    return command;
  }

 private:
  static std::string name(int host) { return fmt::format("muster-test-{}-{}", getpid(), host); }
  static void ip(std::vector<std::string> arguments) {
    ProcessCluster cluster;
    arguments.insert(arguments.begin(), "ip");
    const auto result = cluster.wait(cluster.start({.command = arguments}), soon());
    EXPECT_EQ(result.exit_code, 0) << "network namespaces need root: " << result.output;
  }
};

class SeveralHostsTest : public ::testing::Test {
 protected:
  int node(int host, std::vector<std::string> more = {}) {
    std::vector<std::string> command = {
        beside("muster"),     "run",           "--workers",     "2", "--nnodes", "2", "--node-rank",
        std::to_string(host), "--coordinator", "10.77.0.1:4321"};
    command.insert(command.end(), more.begin(), more.end());
    command.insert(command.end(), {"--", "hello_cluster"});
    return cluster.start({.command = TwoHosts::on(host, command), .environment = {{"MUSTER_SECRET", "s"}}});
  }
  TwoHosts hosts;
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
}  // namespace muster

int main(int argc, char** argv) {
  const bool listing = argc > 1 && std::string(argv[1]) == "--gtest_list_tests";
  if (geteuid() != 0 && !listing) {
    // `ip netns` keeps its book in /run, which must be ours too.
    std::vector<std::string> command = {"unshare",
                                        "--user",
                                        "--map-root-user",
                                        "--mount",
                                        "--net",
                                        "sh",
                                        "-c",
                                        "mount -t tmpfs tmpfs /run && exec \"$0\" \"$@\"",
                                        muster::testing::self_path()};
    command.insert(command.end(), argv + 1, argv + argc);
    const auto arguments = muster::exec_pointers(command);
    execvp(arguments[0], arguments.data());
    perror("unshare");
    return 1;
  }
  return muster::testing::run_tests(argc, argv, {});
}
