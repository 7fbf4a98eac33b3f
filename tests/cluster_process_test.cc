// Tasks as processes around a coordinator: they enter, die at each phase, stop, and come in numbers. The
// coordinator is in this process, as it would be in a launcher.

#include <signal.h>

#include "run_task.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/cluster/coordinator.h"
#include "muster/cluster/member.h"
#include "muster/run.h"
#include "muster/testing/process_cluster.h"
#include "muster/testing/test_main.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ProcessCluster;
using testing::soon;

// A task of the tests: goes through the phases of a job, and stops where it is told to.
int go_through_phases(const std::vector<std::string>& arguments) {
  const std::string stop_at = arguments.empty() ? "nowhere" : arguments[0];
  const auto pause = [&](const std::string& phase) {
    fmt::print("now {}\n", phase);
    std::fflush(stdout);
    while (stop_at == phase) std::this_thread::sleep_for(10ms);
  };
  pause("before entering");
  return run_task([&](Job& job) {
    pause("entered");
    if (stop_at == "in barrier" || stop_at == "nowhere") fmt::print("now in barrier\n");
    job.barrier("middle");
    pause("after barrier");
    if (stop_at == "failing") throw Error("the disk of this task is full");
    job.barrier("end");
    fmt::print("now done\n");
  });
}

const testing::TaskRegistration kGoThroughPhases("go_through_phases", go_through_phases);

int run_twice(const std::vector<std::string>&) {
  const int code = run_task([](Job&) {});
  return code == 0 ? run_task([](Job&) { fmt::print("again\n"); }) : 1;
}

const testing::TaskRegistration kRunTwice("run_twice", run_twice);

TEST(RunProcessTest, AProcessEntersAJobOnce) {
  ProcessCluster processes;
  const auto result = processes.wait(
      processes.start({.command = {testing::self_path(), "--task-main=run_twice"}, .environment = {}}),
      soon());
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("muster::run was called twice"), ::testing::Not(HasSubstr("again"))));
}

class ClusterProcessTest : public ::testing::Test {
 protected:
  void start_coordinator(int workers, std::chrono::milliseconds heartbeat_timeout = 10s) {
    TaskSet tasks;
    for (int i = 0; i < workers; ++i) {
      tasks["worker"].push_back(i);
      description += fmt::format("{}127.0.0.1:{}", i == 0 ? "worker=" : ",", 1000 + i);
    }
    coordinator.emplace(Coordinator::Options{.listen = {{"127.0.0.1", 0}},
                                             .job_id = "test",
                                             .secret = "secret",
                                             .tasks = std::move(tasks),
                                             .heartbeat_timeout = heartbeat_timeout});
  }

  int start_task(int index, const std::string& stop_at = "nowhere",
                 std::map<std::string, std::string> more = {}) {
    std::map<std::string, std::string> environment = {
        {"MUSTER_TASK", fmt::format("/job:worker/task:{}", index)},
        {"MUSTER_CLUSTER", description},
        {"MUSTER_COORDINATOR", coordinator->address().to_string()},
        {"MUSTER_JOB_ID", "test"},
        {"MUSTER_SECRET", "secret"}};
    for (const auto& [name, value] : more) environment[name] = value;
    return cluster.start({.command = {testing::self_path(), "--task-main=go_through_phases", stop_at},
                          .environment = environment});
  }

  std::string description;
  std::optional<Coordinator> coordinator;
  ProcessCluster cluster;
};

TEST_F(ClusterProcessTest, TasksEnterAndEndCleanly) {
  start_coordinator(2);
  const int a = start_task(0);
  const int b = start_task(1);
  for (const int task : {a, b}) {
    const auto result = cluster.wait(task, soon());
    EXPECT_TRUE(result.ok()) << result.output;
    EXPECT_THAT(result.output, HasSubstr("now done"));
  }
  EXPECT_TRUE(coordinator->wait_idle(soon()));
  EXPECT_FALSE(coordinator->aborted());
}

TEST_F(ClusterProcessTest, ATaskKilledBeforeItEntersIsReportedToThoseWhoWait) {
  start_coordinator(2);
  Member launcher({.coordinator = {coordinator->address()},
                   .job_id = "test",
                   .secret = "secret",
                   .task = TaskName::of("launcher", 0),
                   .observer = true},
                  soon());
  const int a = start_task(0);
  const int b = start_task(1, "before entering");
  cluster.wait_for_output(b, "now before entering", soon());
  cluster.signal(b, SIGKILL);
  EXPECT_EQ(cluster.wait(b, soon()).signal, SIGKILL);
  try {
    launcher.exited(TaskName::of("worker", 1), "was killed by signal 9 (SIGKILL)", soon());
  } catch (const Aborted&) {
    // worker 0 waits already
  }
  const auto result = cluster.wait(a, soon());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output,
              HasSubstr("worker/1 was killed by signal 9 (SIGKILL) before it entered the job"));
}

TEST_F(ClusterProcessTest, WithoutALauncherAMissingTaskIsADeadline) {
  start_coordinator(2);
  const int a = start_task(0, "nowhere", {{"MUSTER_JOIN_TIMEOUT", "15s"}});
  const auto result = cluster.wait(a, soon());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output,
              HasSubstr("not all tasks entered the job within 15.0 s (--join-timeout); not there yet: "
                        "/job:worker/task:1"));
}

TEST_F(ClusterProcessTest, ATaskKilledInABarrierIsNamedToTheOthers) {
  start_coordinator(3);
  const int a = start_task(0);
  const int b = start_task(1, "in barrier");
  const int c = start_task(2, "entered");
  cluster.wait_for_output(a, "now in barrier", soon());
  cluster.wait_for_output(b, "now in barrier", soon());
  cluster.wait_for_output(c, "now entered", soon());
  cluster.signal(b, SIGKILL);
  const auto result = cluster.wait(a, soon());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, AllOf(HasSubstr("worker/1 (host"),
                                   HasSubstr(fmt::format("pid {}", cluster.pid(b))), HasSubstr("failed")));
  EXPECT_THAT(coordinator->aborted()->reason, HasSubstr("its connection closed"));
  EXPECT_EQ(coordinator->aborted()->by, TaskName::of("worker", 1));
}

TEST_F(ClusterProcessTest, ATaskKilledAfterTheBarrierIsNamedToTheOthers) {
  start_coordinator(2);
  const int a = start_task(0);
  const int b = start_task(1, "after barrier");
  cluster.wait_for_output(b, "now after barrier", soon());
  cluster.signal(b, SIGKILL);
  const auto result = cluster.wait(a, soon());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("worker/1 (host"));
}

TEST_F(ClusterProcessTest, AStoppedTaskHasFailedAfterTheLimitAndLearnsItWhenItGoesOn) {
  start_coordinator(3, 5s);
  const int a = start_task(0);
  const int b = start_task(1);
  const int c = start_task(2, "entered");  // keeps the other two in the barrier
  cluster.wait_for_output(a, "now in barrier", soon());
  cluster.wait_for_output(b, "now in barrier", soon());
  cluster.wait_for_output(c, "now entered", soon());
  cluster.signal(b, SIGSTOP);
  const auto result = cluster.wait(a, soon());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("stopped, because worker/1 (host"));
  EXPECT_THAT(coordinator->aborted()->reason, HasSubstr("silent for longer than 5.0 s"));
  EXPECT_EQ(coordinator->aborted()->by, TaskName::of("worker", 1));
  cluster.signal(b, SIGCONT);
  const auto stopped = cluster.wait(b, soon());
  EXPECT_EQ(stopped.exit_code, 1);
  EXPECT_THAT(stopped.output, HasSubstr("the coordinator gave up on this task"));
}

TEST_F(ClusterProcessTest, AnExceptionInOneTaskEndsAllWhoNameIt) {
  start_coordinator(3);
  const int a = start_task(0);
  const int b = start_task(1, "failing");
  const int c = start_task(2);
  for (const int task : {a, b, c}) {
    const auto result = cluster.wait(task, soon());
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.output,
                HasSubstr(task == b ? "the disk of this task is full" : "stopped, because worker/1 (host "));
  }
  EXPECT_THAT(coordinator->aborted()->reason, HasSubstr("the disk of this task is full"));
}

TEST_F(ClusterProcessTest, AWrongSecretIsRefusedOnBothSides) {
  start_coordinator(1);
  ::testing::internal::CaptureStderr();
  const int stranger = start_task(0, "nowhere", {{"MUSTER_SECRET", "guess"}});
  const auto result = cluster.wait(stranger, soon());
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("refused /job:worker/task:0: it does not know the job's secret"));
  EXPECT_THAT(log, AllOf(HasSubstr("refused worker/0 (host"), HasSubstr("does not know the job's secret")));
  EXPECT_TRUE(cluster.wait(start_task(0), soon()).ok()) << "the right task must still be able to enter";
}

TEST_F(ClusterProcessTest, ASecondTaskOfTheSameNameIsRefusedOnBothSides) {
  start_coordinator(2);
  const int first = start_task(0, "entered");
  const int partner = start_task(1, "entered");
  cluster.wait_for_output(first, "now entered", soon());
  ::testing::internal::CaptureStderr();
  const auto result = cluster.wait(start_task(0), soon());
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(result.exit_code, 1);
  const std::string reason =
      fmt::format("/job:worker/task:0 has already entered the job, as pid {}", cluster.pid(first));
  EXPECT_THAT(result.output, HasSubstr(reason));
  EXPECT_THAT(log, HasSubstr(reason));
  EXPECT_FALSE(coordinator->aborted());
  cluster.signal(partner, SIGKILL);
}

TEST_F(ClusterProcessTest, SixtyFourTasksEnter) {
  start_coordinator(64, 60s);
  std::vector<int> tasks;
  for (int i = 0; i < 64; ++i) tasks.push_back(start_task(i));
  for (const int task : tasks) {
    const auto result = cluster.wait(task, Deadline::after(180s));
    EXPECT_TRUE(result.ok()) << result.output;
  }
  EXPECT_FALSE(coordinator->aborted());
}

TEST_F(ClusterProcessTest, TheCoordinatorsEndEndsItsTasks) {
  start_coordinator(2);
  const int a = start_task(0, "entered");
  const int b = start_task(1);
  cluster.wait_for_output(b, "now in barrier", soon());
  coordinator.reset();
  const auto result = cluster.wait(b, soon());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("the coordinator at"));
  cluster.signal(a, SIGKILL);
}

}  // namespace
}  // namespace muster::detail
