// `muster run` with parameter servers: the job goes on when a worker is lost, and what it exits with then.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/net/reserved_port.h"
#include "muster/testing/process_cluster.h"
#include "muster/testing/test_main.h"
#include "muster/train/run.h"

namespace muster {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProcessCluster;

Deadline soon() {
  return Deadline::after(90s);
}

// Servers serve until the workers are done. A worker named in the arguments stays; one that was started again
// does not; the others wait for all workers that live. So a job ends when those that stay are lost.
int stay(const std::vector<std::string>& arguments) {
  std::vector<char*> no_flags = {const_cast<char*>("task"), nullptr};
  return run(1, no_flags.data(), [&](Job& job) {
    fmt::print("{} is up as pid {}\n", job.task().short_name(), getpid());
    const bool stays =
        std::find(arguments.begin(), arguments.end(), job.task().short_name()) != arguments.end();
    if (stays && job.config().restart_count == 0) job.get("never");
    if (job.config().restart_count > 0) fmt::print("life {}\n", job.config().restart_count);
    job.barrier("end", "worker");
    fmt::print("{} is done\n", job.task().short_name());
  });
}

class LauncherLossesTest : public ::testing::Test {
 protected:
  int start(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {muster(), "run", "--strategy", "ps-async"});
    return cluster.start({.command = arguments});
  }

  // Workers that stay, by name.
  int start(std::vector<std::string> arguments, const std::vector<std::string>& those_that_stay) {
    arguments.insert(arguments.end(), {"--", testing::self_path(), "--task-main=stay"});
    arguments.insert(arguments.end(), those_that_stay.begin(), those_that_stay.end());
    return start(std::move(arguments));
  }

  // A worker says it itself, a server only to the coordinator.
  pid_t pid_of(int launcher, const std::string& task) {
    const std::string before = task + (task.starts_with("ps/") ? " is at " : " is up as ");
    cluster.wait_for_output(launcher, before, soon());
    const std::string output = cluster.output(launcher);
    return std::stoi(output.substr(output.find("pid ", output.find(before)) + 4));
  }

  static std::string muster() { return std::filesystem::path(testing::self_path()).parent_path() / "muster"; }

  ProcessCluster cluster;
};

TEST_F(LauncherLossesTest, OneServerIsStartedWhenTheirNumberIsNotGiven) {
  const auto result = cluster.wait(start({"--workers", "1"}, {}), soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("ps/0 is at"), Not(HasSubstr("ps/1"))));
}

TEST_F(LauncherLossesTest, AJobGoesOnWithoutAWorkerThatIsKilled) {
  const int launcher = start({"--workers", "3", "--ps", "2"}, {"worker/1"});
  pid_of(launcher, "worker/0");
  pid_of(launcher, "worker/2");
  const pid_t victim = pid_of(launcher, "worker/1");
  kill(victim, SIGKILL);
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(
      result.output,
      AllOf(HasSubstr(fmt::format("worker/1 (pid {}) was killed by signal 9 (SIGKILL); the job goes on "
                                  "without it",
                                  victim)),
            HasSubstr("worker/0 is done"), HasSubstr("worker/2 is done")));
}

TEST_F(LauncherLossesTest, TheLossOfTheLastWorkerEndsTheJobWithItsCode) {
  const int launcher = start({"--workers", "2"}, {"worker/0", "worker/1"});
  const pid_t first = pid_of(launcher, "worker/0");
  const pid_t second = pid_of(launcher, "worker/1");
  kill(first, SIGKILL);
  cluster.wait_for_output(launcher, "(SIGKILL); the job goes on without it", soon());
  kill(second, SIGUSR2);  // not one that a sanitizer catches
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 128 + SIGUSR2) << result.output;
  EXPECT_THAT(result.output, HasSubstr("the job failed: worker/1 was killed by signal 12 (SIGUSR2)"));
}

TEST_F(LauncherLossesTest, ProgramsThatKnowNothingOfMusterGoOnToo) {
  const auto one_fails = cluster.wait(
      start({"--workers", "2", "--ps", "0", "--", "sh", "-c", "[ $RANK = 0 ] || exit 5; sleep 0.2"}), soon());
  EXPECT_EQ(one_fails.exit_code, 0) << one_fails.output;
  EXPECT_THAT(one_fails.output, HasSubstr("exited with code 5; the job goes on without it"));
  const auto all_fail = cluster.wait(
      start({"--workers", "2", "--ps", "0", "--", "sh", "-c", "[ $RANK = 0 ] || exit 5; sleep 1; exit 6"}),
      soon());
  EXPECT_EQ(all_fail.exit_code, 6) << all_fail.output;
}

TEST_F(LauncherLossesTest, AWorkerThatFailsBeforeTheJobIsAssembledEndsIt) {
  const auto result = cluster.wait(
      start({"--workers", "2", "--", "sh", "-c",
             "[ \"$RANK\" != 1 ] || exit 5; exec " + testing::self_path() + " --task-main=stay"}),
      soon());
  EXPECT_EQ(result.exit_code, 5) << result.output;
  EXPECT_THAT(result.output, HasSubstr("the job failed: worker/1 exited with code 5"));
}

TEST_F(LauncherLossesTest, AServerThatFailsForGoodEndsTheJobWithItsCode) {
  const int launcher = start({"--workers", "2", "--ps", "2"}, {"worker/0", "worker/1"});
  pid_of(launcher, "worker/0");
  pid_of(launcher, "worker/1");
  kill(pid_of(launcher, "ps/1"), SIGKILL);
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.output;
  EXPECT_THAT(result.output, HasSubstr("the job failed: ps/1 was killed by signal 9 (SIGKILL)"));
}

TEST_F(LauncherLossesTest, AServerThatMayBeRestartedIs) {
  const int launcher = start({"--workers", "2", "--max-restarts", "1"}, {"worker/1"});
  pid_of(launcher, "worker/0");
  const pid_t worker = pid_of(launcher, "worker/1");
  const pid_t server = pid_of(launcher, "ps/0");
  kill(server, SIGKILL);
  cluster.wait_for_output(launcher, "joined again as incarnation 1", soon());
  kill(worker, SIGKILL);
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(
      result.output,
      AllOf(HasSubstr(fmt::format("ps/0 (pid {}) was killed by signal 9 (SIGKILL); restarting it (1 of "
                                  "1)",
                                  server)),
            HasSubstr("life 1")));
}

TEST_F(LauncherLossesTest, TheOnlyWorkerIsRestartedWhileItMayBe) {
  const int launcher = start({"--workers", "1", "--max-restarts", "1"}, {"worker/0"});
  kill(pid_of(launcher, "worker/0"), SIGKILL);
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("worker/0 | life 1"), HasSubstr("worker/0 is done")));
}

TEST_F(LauncherLossesTest, AStoppedWorkerIsLostAndToldSoWhenItContinues) {
  const int launcher = start({"--workers", "3", "--heartbeat-timeout", "2s"}, {"worker/0", "worker/1"});
  const pid_t last = pid_of(launcher, "worker/0");
  const pid_t stopped = pid_of(launcher, "worker/1");
  kill(stopped, SIGSTOP);
  cluster.wait_for_output(launcher, "is lost: it was silent for longer than 2.0 s; the job goes on", soon());
  kill(stopped, SIGCONT);
  cluster.wait_for_output(launcher, "the coordinator gave up on this task", soon());
  kill(last, SIGKILL);
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST_F(LauncherLossesTest, AWorkerThatStaysStoppedDoesNotKeepTheJobFromEnding) {
  const int launcher =
      start({"--workers", "2", "--heartbeat-timeout", "2s", "--grace", "300ms"}, {"worker/1"});
  const pid_t stopped = pid_of(launcher, "worker/1");
  pid_of(launcher, "worker/0");
  kill(stopped, SIGSTOP);
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("worker/0 is done"));
  EXPECT_NE(kill(stopped, 0), 0) << "it must not be left behind";
}

// Tasks started by hand: the chief hosts the coordinator, and waits for the others at its end.
TEST_F(LauncherLossesTest, AJobWithoutALauncherGoesOnWithoutAStoppedWorker) {
  std::vector<ReservedPort> ports;
  std::string addresses;
  for (int i = 0; i < 3; ++i) {
    ports.emplace_back("127.0.0.1");
    addresses += fmt::format("{}127.0.0.1:{}", i == 0 ? "worker=" : ",", ports.back().port());
  }
  std::vector<int> workers;
  for (int i = 0; i < 3; ++i) {
    workers.push_back(cluster.start({.command = {testing::self_path(), "--task-main=stay", "worker/1"},
                                     .environment = {{"MUSTER_TASK", fmt::format("/job:worker/task:{}", i)},
                                                     {"MUSTER_CLUSTER", addresses},
                                                     {"MUSTER_STRATEGY", "ps-async"},
                                                     {"MUSTER_HEARTBEAT_TIMEOUT", "2s"}}}));
  }
  for (const int worker : workers) cluster.wait_for_output(worker, "is up", soon());
  cluster.signal(workers[1], SIGSTOP);
  for (const int worker : {workers[2], workers[0]}) {
    const auto result = cluster.wait(worker, soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
  cluster.signal(workers[1], SIGCONT);
  EXPECT_EQ(cluster.wait(workers[1], soon()).exit_code, 1);
}

class TwoNodesTest : public LauncherLossesTest {
 protected:
  int start_node(const std::string& rank, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--workers", "2", "--nnodes", "2", "--node-rank", rank,
                                         "--coordinator", fmt::format("127.0.0.1:{}", port.port())});
    return start(std::move(arguments));
  }
  const ReservedPort port{"127.0.0.1"};
};

TEST_F(TwoNodesTest, AWorkerThatIsLostOnOneNodeLeavesTheOtherGoingOn) {
  std::vector<int> nodes;
  for (const char* rank : {"0", "1"})
    nodes.push_back(start_node(rank, {"--", testing::self_path(), "--task-main=stay", "worker/1"}));
  pid_of(nodes[0], "worker/0");
  kill(pid_of(nodes[1], "worker/1"), SIGKILL);
  for (const int node : nodes) {
    const auto result = cluster.wait(node, soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST_F(TwoNodesTest, TheJobFailsWhenEveryWorkerDoes) {
  std::vector<int> nodes;
  for (const char* rank : {"0", "1"})
    nodes.push_back(start_node(rank, {"--ps", "0", "--", "sh", "-c", "exit 5"}));
  for (const int node : nodes) {
    const auto result = cluster.wait(node, soon());
    EXPECT_NE(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("exited with code 5"));
  }
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  return muster::testing::run_tests(argc, argv, {{"stay", muster::stay}});
}
