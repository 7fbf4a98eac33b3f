// `muster run` with parameter servers: the job goes on when a worker fails, and what it exits with then.

#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "gate.h"
#include "run_task.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/net/reserved_port.h"
#include "muster/run.h"
#include "muster/testing/process_cluster.h"
#include "muster/testing/test_main.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProcessCluster;
using testing::soon;

// Servers serve until the workers are done. A worker named in the arguments stays; one that was started again
// does not; the others wait for all workers that live. So a job ends when those that stay have failed.
int stay(const std::vector<std::string>& arguments) {
  return run_task([&](Job& job) {
    fmt::print("{} is up as pid {}\n", job.task().name, getpid());
    const bool stays = std::find(arguments.begin(), arguments.end(), job.task().name) != arguments.end();
    if (stays && job.incarnation() == 0) job.get("never", 24h);  // a limit: it is no deadlock
    if (job.incarnation() > 0) fmt::print("incarnation {}\n", job.incarnation());
    job.context().barrier("end", "worker");
    fmt::print("{} is done\n", job.task().name);
  });
}

const testing::TaskRegistration kStay("stay", stay);

// Waits for what only the chief would put, which dies before.
int wait_for_chief(const std::vector<std::string>&) {
  return run_task([](Job& job) {
    job.barrier("start");
    if (job.is_chief()) std::_Exit(3);
    job.get("weights");
  });
}

const testing::TaskRegistration kWaitForChief("wait_for_chief", wait_for_chief);

class LauncherFailuresTest : public ::testing::Test {
 protected:
  int start(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {testing::beside_self("muster"), "run", "--strategy", "ps-async"});
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

  ProcessCluster cluster;
};

TEST_F(LauncherFailuresTest, OneServerIsStartedWhenTheirNumberIsNotGiven) {
  const auto result = cluster.wait(start({"--workers", "1"}, {}), soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("ps/0 is at"), Not(HasSubstr("ps/1"))));
}

TEST_F(LauncherFailuresTest, AJobGoesOnWithoutAWorkerThatIsKilled) {
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

TEST_F(LauncherFailuresTest, TheFailureOfTheLastWorkerEndsTheJobWithItsCode) {
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

TEST_F(LauncherFailuresTest, WhatNobodyWhoIsLeftCanPutIsNotWaitedForInSilence) {
  const auto result = cluster.wait(start({"--workers", "2", "--stall-warning", "1s", "--",
                                          testing::self_path(), "--task-main=wait_for_chief"}),
                                   soon());
  EXPECT_NE(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("the job goes on without it"),
                                   HasSubstr("worker/1 waits in get of 'weights' for somebody to put it")));
}

TEST_F(LauncherFailuresTest, ProgramsThatKnowNothingOfMusterGoOnToo) {
  const Gate gate;
  for (const int last_code : {0, 6}) {
    const int launcher = start(
        {"--workers", "2", "--", "sh", "-c",
         fmt::format("[ -n \"$RANK\" ] || exec sleep 600; [ $RANK = 0 ] || exit 5; read line < {}; exit {}",
                     gate.path(), last_code)});
    cluster.wait_for_output(launcher, "exited with code 5; the job goes on without it", soon());
    gate.open();
    const auto result = cluster.wait(launcher, soon());
    EXPECT_EQ(result.exit_code, last_code) << result.output;
  }
}

TEST_F(LauncherFailuresTest, AWorkerThatFailsBeforeTheJobIsAssembledEndsIt) {
  const auto result = cluster.wait(
      start({"--workers", "2", "--", "sh", "-c",
             "[ \"$RANK\" != 1 ] || exit 5; exec " + testing::self_path() + " --task-main=stay"}),
      soon());
  EXPECT_EQ(result.exit_code, 5) << result.output;
  EXPECT_THAT(result.output, HasSubstr("the job failed: worker/1 exited with code 5"));
}

TEST_F(LauncherFailuresTest, AServerThatFailsForGoodEndsTheJobWithItsCode) {
  const int launcher = start({"--workers", "2", "--ps", "2"}, {"worker/0", "worker/1"});
  pid_of(launcher, "worker/0");
  pid_of(launcher, "worker/1");
  kill(pid_of(launcher, "ps/1"), SIGKILL);
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.output;
  EXPECT_THAT(result.output, HasSubstr("the job failed: ps/1 was killed by signal 9 (SIGKILL)"));
}

TEST_F(LauncherFailuresTest, AServerThatMayBeRestartedIs) {
  const int launcher = start({"--workers", "2", "--max-restarts", "1"}, {"worker/1"});
  pid_of(launcher, "worker/0");
  const pid_t worker = pid_of(launcher, "worker/1");
  const pid_t server = pid_of(launcher, "ps/0");
  kill(server, SIGKILL);
  cluster.wait_for_output(launcher, "entered again as incarnation 1", soon());
  kill(worker, SIGKILL);
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(
      result.output,
      AllOf(HasSubstr(fmt::format("ps/0 (pid {}) was killed by signal 9 (SIGKILL); restarting it (1 of "
                                  "1)",
                                  server)),
            HasSubstr("incarnation 1")));
}

TEST_F(LauncherFailuresTest, TheOnlyWorkerIsRestartedWhileItMayBe) {
  const int launcher = start({"--workers", "1", "--max-restarts", "1"}, {"worker/0"});
  kill(pid_of(launcher, "worker/0"), SIGKILL);
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("worker/0 | incarnation 1"), HasSubstr("worker/0 is done")));
}

TEST_F(LauncherFailuresTest, AStoppedWorkerHasFailedAndIsToldSoWhenItContinues) {
  const int launcher = start({"--workers", "3", "--heartbeat-timeout", "2s"}, {"worker/0", "worker/1"});
  const pid_t last = pid_of(launcher, "worker/0");
  const pid_t stopped = pid_of(launcher, "worker/1");
  kill(stopped, SIGSTOP);
  cluster.wait_for_output(launcher, "failed: it was silent for longer than 2.0 s; the job goes on", soon());
  kill(stopped, SIGCONT);
  cluster.wait_for_output(launcher, "the coordinator gave up on this task", soon());
  kill(last, SIGKILL);
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST_F(LauncherFailuresTest, AWorkerThatStaysStoppedDoesNotKeepTheJobFromEnding) {
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
TEST_F(LauncherFailuresTest, AJobWithoutALauncherGoesOnWithoutAStoppedWorker) {
  std::vector<ReservedPort> ports;
  std::string addresses;
  for (const char* before : {"worker=", ",", ",", ";ps="}) {
    ports.emplace_back("127.0.0.1");
    addresses += fmt::format("{}127.0.0.1:{}", before, ports.back().port());
  }
  const auto start_task = [&](const std::string& name) {
    return cluster.start({.command = {testing::self_path(), "--task-main=stay", "worker/1"},
                          .environment = {{"MUSTER_TASK", name},
                                          {"MUSTER_CLUSTER", addresses},
                                          {"MUSTER_STRATEGY", "ps-async"},
                                          {"MUSTER_HEARTBEAT_TIMEOUT", "2s"}}});
  };
  std::vector<int> workers;
  for (const char* name : {"worker/0", "worker/1", "worker/2"}) workers.push_back(start_task(name));
  const int server = start_task("ps/0");
  for (const int worker : workers) cluster.wait_for_output(worker, "is up", soon());
  cluster.signal(workers[1], SIGSTOP);
  for (const int worker : {workers[2], workers[0]}) {
    const auto result = cluster.wait(worker, soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
  cluster.signal(workers[1], SIGCONT);
  EXPECT_EQ(cluster.wait(workers[1], soon()).exit_code, 1);
  EXPECT_EQ(cluster.wait(server, soon()).exit_code, 0);
}

class TwoNodesTest : public LauncherFailuresTest {
 protected:
  int start_node(const std::string& rank, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--workers", "2", "--nnodes", "2", "--node-rank", rank,
                                         "--coordinator", fmt::format("127.0.0.1:{}", port.port())});
    return start(std::move(arguments));
  }
  const ReservedPort port{"127.0.0.1"};
};

TEST_F(TwoNodesTest, AWorkerThatFailsOnOneNodeLeavesTheOtherGoingOn) {
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
    nodes.push_back(start_node(rank, {"--", "sh", "-c", "[ -n \"$RANK\" ] || exec sleep 600; exit 5"}));
  for (const int node : nodes) {
    const auto result = cluster.wait(node, soon());
    EXPECT_NE(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("exited with code 5"));
  }
}

}  // namespace
}  // namespace muster::detail
