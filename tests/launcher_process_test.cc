// `muster run` as a user has it: what it shows, which code it exits with, and that nothing is left behind
// however it ends.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gate.h"
#include "run_task.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/descriptor.h"
#include "muster/base/error.h"
#include "muster/communicator.h"
#include "muster/net/reserved_port.h"
#include "muster/run.h"
#include "muster/testing/process_cluster.h"
#include "muster/testing/test_main.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using testing::beside_self;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProcessCluster;
using testing::soon;

// Enters, then waits for a peer that never comes to the barrier.
int wait_for_ever(const std::vector<std::string>&) {
  return run_task([](Job& job) {
    fmt::print("{} waits as pid {}\n", job.task().name, getpid());
    if (job.task().name == "worker/1") std::this_thread::sleep_for(24h);
    job.barrier("never");
  });
}

const testing::TaskRegistration kWaitForEver("wait_for_ever", wait_for_ever);

// Each waits for the others in a barrier of its own.
int wait_apart(const std::vector<std::string>&) {
  return run_task([](Job& job) { job.barrier(job.task().name); });
}

const testing::TaskRegistration kWaitApart("wait_apart", wait_apart);

int die_in_all_reduce(const std::vector<std::string>&) {
  return run_task([](Job& job) {
    for (int step = 0;; ++step) {
      float sum = 1;
      job.communicator().all_reduce(&sum, 1, DType::kFloat32);
      if (job.rank() == 1 && step == 3) kill(getpid(), SIGUSR2);  // not one that a sanitizer catches
    }
  });
}

const testing::TaskRegistration kDieInAllReduce("die_in_all_reduce", die_in_all_reduce);

// Shows a long line of progress, and waits.
int wait_with_a_live_line(const std::vector<std::string>&) {
  return run_task([](Job& job) {
    job.barrier("start");
    if (job.is_chief()) {
      fmt::print("launcher {}\n", getppid());
      fmt::print(stderr, "{}\x1b[K\r", std::string(150, '='));
    }
    job.barrier(job.is_chief() ? "never" : "neither", 24h);
  });
}

const testing::TaskRegistration kWaitWithALiveLine("wait_with_a_live_line", wait_with_a_live_line);

// Worker 1 fails in its first incarnation, after it has entered.
int fail_once(const std::vector<std::string>&) {
  return run_task([](Job& job) {
    if (job.incarnation() == 0) job.barrier("start");
    if (job.task().name == "worker/1" && job.incarnation() == 0) {
      fmt::print("worker 1 dies\n");
      std::_Exit(7);
    }
    if (job.incarnation() > 0) fmt::print("incarnation {} of {}\n", job.incarnation(), job.task().name);
    job.barrier("end");
  });
}

const testing::TaskRegistration kFailOnce("fail_once", fail_once);

int throw_in_worker_1(const std::vector<std::string>&) {
  return run_task([](Job& job) {
    job.barrier("start");
    if (job.task().name == "worker/1") throw Error("no more disk in worker 1");
    job.barrier("never");
  });
}

const testing::TaskRegistration kThrowInWorker1("throw_in_worker_1", throw_in_worker_1);

// As a Trainer does whose failure the program catches.
int forget_a_failure(const std::vector<std::string>&) {
  return run_task([](Job& job) {
    if (job.rank() == 1) job.context().note_failed_training("no more disk in worker 1");
  });
}

const testing::TaskRegistration kForgetAFailure("forget_a_failure", forget_a_failure);

// The others take longer to end than a launcher waits that does not know them.
int throw_in_worker_1_and_end_slowly(const std::vector<std::string>&) {
  return run_task([](Job& job) {
    job.barrier("start");
    if (job.task().name == "worker/1") throw Error("no more disk in worker 1");
    try {
      job.barrier("never");
    } catch (const Aborted&) {
      std::this_thread::sleep_for(1500ms);
      throw;
    }
  });
}

const testing::TaskRegistration kThrowInWorker1AndEndSlowly("throw_in_worker_1_and_end_slowly",
                                                            throw_in_worker_1_and_end_slowly);

// Its argument need not be UTF-8.
int throw_argument_in_worker_1(const std::vector<std::string>& arguments) {
  return run_task([&](Job& job) {
    job.barrier(arguments.front());
    if (job.task().name == "worker/1") throw Error(arguments.front() + " is not a folder");
    job.barrier("never");
  });
}

const testing::TaskRegistration kThrowArgumentInWorker1("throw_argument_in_worker_1",
                                                        throw_argument_in_worker_1);

int abort_and_linger_in_worker_1(const std::vector<std::string>&) {
  return run_task([](Job& job) {
    job.barrier("start");
    if (job.task().name == "worker/1") {
      job.context().abort("no more disk in worker 1");
      pause();
    }
    job.barrier("never");
  });
}

const testing::TaskRegistration kAbortAndLingerInWorker1("abort_and_linger_in_worker_1",
                                                         abort_and_linger_in_worker_1);

// A server that knows nothing of when to end, beside workers that do.
int serve_for_ever(const std::vector<std::string>&) {
  return run_task([](Job& job) {
    if (job.is_server()) {
      job.wait_for_workers();
      fmt::print("server saw the workers finish\n");
    }
  });
}

const testing::TaskRegistration kServeForEver("serve_for_ever", serve_for_ever);

// Worker 1, or the only one, ends the program where it should return.
int exit_in_the_middle(const std::vector<std::string>& arguments) {
  return run_task([&](Job& job) {
    if (job.is_server()) return job.wait_for_workers();
    job.barrier("start");
    if (job.rank() == 1 || arguments.back() == "1") std::_Exit(0);
    job.context().barrier("end", "worker");
  });
}

const testing::TaskRegistration kExitInTheMiddle("exit_in_the_middle", exit_in_the_middle);

// Not by read(), in which ThreadSanitizer keeps signals from a thread.
[[gnu::noinline]] void poll_in_worker_1(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  pollfd entry = {.fd = file.get(), .events = POLLIN, .revents = 0};
  while (poll(&entry, 1, -1) != 1) {
  }
}

// Worker 1 waits for the gate at the path that is its argument, and the others for it in a barrier.
int hang_in_worker_1(const std::vector<std::string>& arguments) {
  return run_task([&](Job& job) {
    fmt::print("{} begins\n", job.task().name);
    if (job.task().name == "worker/1") poll_in_worker_1(arguments.front());
    job.barrier("held up");
    fmt::print("{} has gone on\n", job.task().name);
  });
}

const testing::TaskRegistration kHangInWorker1("hang_in_worker_1", hang_in_worker_1);

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class LauncherTest : public ::testing::Test {
 protected:
  int start(std::vector<std::string> arguments, std::map<std::string, std::string> environment = {}) {
    arguments.insert(arguments.begin(), {beside_self("muster"), "run"});
    return cluster.start({.command = arguments, .environment = std::move(environment)});
  }
  ProcessCluster::Result run_to_end(std::vector<std::string> arguments,
                                    std::map<std::string, std::string> environment = {}) {
    return cluster.wait(start(std::move(arguments), std::move(environment)), soon());
  }
  static std::string self() { return testing::self_path(); }

  // A number that marks the processes of this test on their command lines.
  const std::string mark = fmt::format("7{}.{}", getpid(), std::rand() % 100000);
  bool nothing_left() {
    const auto deadline = soon();
    while (!testing::processes_mentioning(mark).empty()) {
      if (deadline.expired()) return false;
      std::this_thread::sleep_for(10ms);
    }
    return true;
  }
  ProcessCluster cluster;
};

TEST_F(LauncherTest, TasksThatWaitForEachOtherAreToldSoAllAtOnce) {
  const auto began = Deadline::Clock::now();
  const auto result =
      run_to_end({"--workers", "3", "--stall-warning", "1s", "--", self(), "--task-main=wait_apart"});
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_LT(Deadline::Clock::now() - began, 60s);
  EXPECT_THAT(
      result.output,
      AllOf(HasSubstr("deadlock: worker/0 waits in barrier 'worker/0' for worker/1 and worker/2 (since"),
            HasSubstr("worker/1 waits in barrier 'worker/1' for worker/0"),
            HasSubstr("all tasks must come to the same barriers in the same order"),
            HasSubstr("stopped, because the job was aborted")));
  size_t said = 0;  // by the launcher alone, at once and at the end
  for (size_t at = 0; (at = result.output.find("deadlock: ", at)) != std::string::npos; ++at) ++said;
  EXPECT_LE(said, 2U) << result.output;
}

TEST_F(LauncherTest, WhoHoldsTheOthersUpIsSaidOnce) {
  const int launcher =
      start({"--workers", "3", "--stall-warning", "1s", "--", self(), "--task-main=wait_for_ever"});
  cluster.wait_for_output(launcher, "waits for nobody", soon());
  kill(cluster.pid(launcher), SIGTERM);
  const auto result = cluster.wait(launcher, soon());
  EXPECT_THAT(result.output, HasSubstr("worker/0 and worker/2 wait in barrier 'never' for worker/1 since"));
  EXPECT_THAT(result.output, HasSubstr("; worker/1 (host "));
}

TEST_F(LauncherTest, AWaitBeyondTheTimeoutEndsTheJobWithTheNameOfTheOneWhoIsMissing) {
  const auto result = run_to_end({"--workers", "2", "--stall-warning", "1s", "--collective-timeout", "3s",
                                  "--", self(), "--task-main=wait_for_ever"});
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("worker/0 has waited in barrier 'never' for worker/1"),
                                   HasSubstr("longer than --collective-timeout")));
}

TEST_F(LauncherTest, SettingsReachTheTasks) {
  const auto result = run_to_end({"--workers", "1", "--bucket", "3M", "--precision", "bf16", "--", "sh", "-c",
                                  "echo $MUSTER_BUCKET $MUSTER_PRECISION"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("3M bf16"));
}

TEST_F(LauncherTest, WorkersAndServersFindEachOther) {
  const auto result =
      run_to_end({"--workers", "2", "--ps", "1", "--strategy", "none", "--", "hello_cluster"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("worker/0 | hello from worker/0"), HasSubstr("worker/1 | hello from worker/1"),
                    HasSubstr("ps/0     | hello from ps/0"), HasSubstr("the cluster has 3 tasks"),
                    HasSubstr("worker/1 is at 127.0.0.1:")));
}

TEST_F(LauncherTest, ProgramsThatKnowNothingOfMusterRunToo) {
  const auto result = run_to_end({"--workers", "2", "--ps", "1", "--strategy", "none", "--", "sh", "-c",
                                  "echo rank=$RANK size=$WORLD_SIZE local=$LOCAL_RANK/$LOCAL_WORLD_SIZE at "
                                  "$MASTER_ADDR; echo $TF_CONFIG"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("worker/0 | rank=0 size=2 local=0/2 at 127.0.0.1"),
                    HasSubstr("rank=1 size=2 local=1/2"), HasSubstr("ps/0     | rank= size= local=/"),
                    HasSubstr(R"("task":{"type":"ps","index":0}})"),
                    HasSubstr(R"("task":{"type":"worker","index":1}})")));
}

TEST_F(LauncherTest, AFailureIsReportedWithItsLastLinesAndItsCode) {
  const auto result =
      run_to_end({"--workers", "3", "--", "sh", "-c",
                  "if [ $RANK = 1 ]; then echo out of luck >&2; exit 3; fi; exec sleep " + mark});
  EXPECT_EQ(result.exit_code, 3) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("worker/1 (pid"), HasSubstr("the job failed: worker/1 exited with code 3"),
                    HasSubstr("the last lines of worker/1:"), HasSubstr("  out of luck")));
  EXPECT_TRUE(nothing_left());
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// The task says it, and the launcher at its end; the others only that they were stopped.
TEST_F(LauncherTest, AnExceptionIsSaidTwiceAndTheOthersAreNotBlamed) {
  const auto result = run_to_end({"--workers", "3", "--", self(), "--task-main=throw_in_worker_1"});
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output, AllOf(ContainsRegex("worker/1 . E [^\n]*no more disk in worker 1"),
                                   ContainsRegex("muster   . the job was aborted: worker/1 \\(host "),
                                   Not(HasSubstr("the job failed:"))));
  EXPECT_EQ(count_of(result.output, "no more disk in worker 1"), 2U) << result.output;
  EXPECT_EQ(count_of(result.output, "stopped, because worker/1 (host "), 2U) << result.output;
}

TEST_F(LauncherTest, AFailureThatTheProgramForgetsIsSaidAtItsEnd) {
  const auto result = run_to_end({"--workers", "2", "--", self(), "--task-main=forget_a_failure"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output,
              AllOf(ContainsRegex("worker/1 . W .*training failed, and the program has ended as "
                                  "if it had not: no more disk in worker 1"),
                    Not(ContainsRegex("worker/0 . W .*training failed"))));
}

TEST_F(LauncherTest, TasksThatAreSlowToEndStillSayWhoHasFailed) {
  const auto result = run_to_end(
      {"--workers", "3", "--grace", "1m", "--", self(), "--task-main=throw_in_worker_1_and_end_slowly"});
  EXPECT_EQ(result.exit_code, 1) << result.output;
  for (const char* task : {"worker/0", "worker/2"})
    EXPECT_THAT(result.output, ContainsRegex(fmt::format("{} . I .*stopped, because worker/1", task)));
}

TEST_F(LauncherTest, ATaskThatIsSlowToEndAfterItsFailureIsBlamedAllTheSame) {
  const auto result =
      run_to_end({"--workers", "3", "--", self(), "--task-main=abort_and_linger_in_worker_1"});
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("muster   | the job was aborted: worker/1"),
                                   Not(HasSubstr("the job failed:"))));
}

TEST_F(LauncherTest, AKilledWorkerIsReportedByName) {
  const int launcher = start({"--workers", "2", "--", self(), "--task-main=wait_for_ever"});
  cluster.wait_for_output(launcher, "worker/0 waits", soon());
  cluster.wait_for_output(launcher, "worker/1 waits as pid ", soon());
  const std::string output = cluster.output(launcher);
  const std::string after = "worker/1 waits as pid ";
  const pid_t victim = std::stoi(output.substr(output.find(after) + after.size()));
  kill(victim, SIGKILL);
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(result.output,
              AllOf(HasSubstr(fmt::format("worker/1 (pid {}) was killed by signal 9 (SIGKILL)", victim)),
                    HasSubstr("the job failed: worker/1 was killed by signal 9 (SIGKILL)")));
}

TEST_F(LauncherTest, CtrlCEndsEverything) {
  const int launcher = start({"--workers", "2", "--", "sh", "-c", "echo up; sleep " + mark + " & wait"});
  cluster.wait_for_output(launcher, "worker/0 | up", soon());
  cluster.wait_for_output(launcher, "worker/1 | up", soon());
  cluster.signal_group(launcher, SIGINT);
  EXPECT_EQ(cluster.wait(launcher, soon()).exit_code, 128 + SIGINT);
  EXPECT_TRUE(nothing_left());
}

// Under `script`, which gives the launcher a terminal.
TEST_F(LauncherTest, AfterCtrlCTheLiveLineFitsHasEndedAndNothingIsCalledAnError) {
  const std::string task = fmt::format("{} --task-main=wait_with_a_live_line", self());
  const int terminal =
      cluster.start({.command = {"script", "-qec",
                                 fmt::format("stty cols 60; exec {} run --workers 2 --no-tune -- {}",
                                             beside_self("muster"), task),
                                 "/dev/null"}});
  cluster.wait_for_output(terminal, "launcher ", soon());
  cluster.wait_for_output(terminal, "=====", soon());
  const std::string output = cluster.output(terminal);
  kill(std::stoi(output.substr(output.find("launcher ") + 9)), SIGINT);
  const auto result = cluster.wait(terminal, soon());
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("SIGINT: stopping 2 tasks"), ::testing::EndsWith("\n"),
                                   Not(HasSubstr("| E ")), Not(HasSubstr(std::string(60, '=')))));
}

TEST_F(LauncherTest, ATaskThatNeverStopsWritingCanBeInterrupted) {
  const int launcher = start({"--workers", "1", "--", "sh", "-c", "yes " + mark});
  cluster.wait_for_output(launcher, mark, soon());
  cluster.signal(launcher, SIGINT);
  EXPECT_EQ(cluster.wait(launcher, soon()).exit_code, 128 + SIGINT);
  EXPECT_TRUE(nothing_left());
}

TEST_F(LauncherTest, TasksThatIgnoreTermAreKilledAfterTheGracePeriod) {
  const int launcher = start({"--workers", "2", "--grace", "300ms", "--", "sh", "-c",
                              "trap '' TERM INT HUP; echo up; while :; do sleep " + mark + "; done"});
  cluster.wait_for_output(launcher, "worker/0 | up", soon());
  cluster.wait_for_output(launcher, "worker/1 | up", soon());
  cluster.signal(launcher, SIGTERM);
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_THAT(result.output, HasSubstr("worker/0 did not end within 0.3 s; killing it"));
  EXPECT_TRUE(nothing_left());
}

TEST_F(LauncherTest, AClosedTerminalLeavesNothing) {
  const int launcher = start({"--workers", "2", "--", "sh", "-c", "echo up; sleep " + mark + " & wait"});
  cluster.wait_for_output(launcher, "worker/0 | up", soon());
  cluster.wait_for_output(launcher, "worker/1 | up", soon());
  cluster.signal_group(launcher, SIGHUP);
  EXPECT_EQ(cluster.wait(launcher, soon()).exit_code, 128 + SIGHUP);
  EXPECT_TRUE(nothing_left());
}

TEST_F(LauncherTest, AKilledLauncherLeavesNothingNotEvenGrandchildren) {
  const int launcher = start({"--workers", "2", "--", "sh", "-c", "echo up; sleep " + mark + " & wait"});
  cluster.wait_for_output(launcher, "worker/0 | up", soon());
  cluster.wait_for_output(launcher, "worker/1 | up", soon());
  EXPECT_FALSE(testing::processes_mentioning(mark).empty());
  cluster.signal(launcher, SIGKILL);
  EXPECT_EQ(cluster.wait(launcher, soon()).signal, SIGKILL);
  EXPECT_TRUE(nothing_left());
}

// With a session of its own, and with a child that its end leaves behind in turn.
TEST_F(LauncherTest, ADaemonThatATaskLeavesBehindIsEndedAndSaid) {
  const auto began = std::filesystem::temp_directory_path() / ("muster-daemon-" + mark);
  const auto result = run_to_end(
      {"--workers", "1", "--", "sh", "-c",
       fmt::format("setsid sh -c 'sleep {0} & touch {1}; wait' & while ! test -e {1}; do sleep 0.02; done",
                   mark, began.string())});
  std::filesystem::remove(began);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output,
              ::testing::ContainsRegex("worker/0 has left sh \\(pid [0-9]+\\) running: ending it"));
  EXPECT_TRUE(testing::processes_mentioning(mark).empty());
}

TEST_F(LauncherTest, AfterAFailureAllTasksStartAgain) {
  const auto result =
      run_to_end({"--workers", "3", "--max-restarts", "1", "--", self(), "--task-main=fail_once"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(
      result.output,
      AllOf(HasSubstr("the job failed: worker/1 exited with code 7; starting all tasks again (1 of 1)"),
            HasSubstr("incarnation 1 of worker/0"), HasSubstr("incarnation 1 of worker/1"),
            HasSubstr("incarnation 1 of worker/2")));
}

TEST_F(LauncherTest, AfterAFailureAllTasksOfAllNodesStartAgain) {
  const ReservedPort port("127.0.0.1");
  std::vector<int> nodes;
  for (const char* node : {"0", "1"}) {
    nodes.push_back(start({"--workers", "2", "--nnodes", "2", "--node-rank", node, "--coordinator",
                           fmt::format("127.0.0.1:{}", port.port()), "--max-restarts", "1", "--", self(),
                           "--task-main=fail_once"},
                          {{"MUSTER_SECRET", "s"}}));
  }
  for (const int node : nodes) {
    const auto result = cluster.wait(node, soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output,
                AllOf(HasSubstr("starting all tasks again (1 of 1)"),
                      HasSubstr(fmt::format("incarnation 1 of worker/{}", node == nodes[1] ? 1 : 0))));
  }
}

TEST_F(LauncherTest, AUserWhoStopsTheJobIsNoReasonToStartAgain) {
  const int launcher =
      start({"--workers", "2", "--max-restarts", "3", "--", self(), "--task-main=wait_for_ever"});
  cluster.wait_for_output(launcher, "worker/0 waits", soon());
  cluster.wait_for_output(launcher, "worker/1 waits", soon());
  cluster.signal(launcher, SIGTERM);
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_THAT(result.output, Not(HasSubstr("again (")));
}

// All tasks wait for each other in the communicator, where whoever notices first must not be blamed.
TEST_F(LauncherTest, WhenRestartsAreOverTheCodeAndTheNameAreThoseOfTheTaskThatFailed) {
  const auto result =
      run_to_end({"--workers", "3", "--max-restarts", "1", "--", self(), "--task-main=die_in_all_reduce"});
  EXPECT_EQ(result.exit_code, 128 + SIGUSR2) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("starting all tasks again (1 of 1)"),
                    HasSubstr("muster   | the job failed: worker/1 was killed by signal 12 (SIGUSR2)\n"),
                    Not(HasSubstr("the job failed: worker/0")), Not(HasSubstr("the job failed: worker/2"))));
}

TEST_F(LauncherTest, RestartsComeToAnEnd) {
  const auto result = run_to_end({"--workers", "2", "--max-restarts", "2", "--", "sh", "-c",
                                  "[ $RANK = 0 ] || exit 9; exec sleep " + mark});
  EXPECT_EQ(result.exit_code, 9) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("(1 of 2)"), HasSubstr("(2 of 2)"),
                                   HasSubstr("the job failed: worker/1 exited with code 9")));
  EXPECT_TRUE(nothing_left());
}

TEST_F(LauncherTest, ServersEndWhenTheWorkersAreDone) {
  const auto result = run_to_end(
      {"--workers", "2", "--ps", "2", "--strategy", "none", "--", self(), "--task-main=serve_for_ever"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("ps/1     | server saw the workers finish"));
}

TEST_F(LauncherTest, ServersThatDoNotEndByThemselvesAreEnded) {
  const auto result = run_to_end({"--workers", "1", "--ps", "1", "--strategy", "none", "--grace", "200ms",
                                  "--", "sh", "-c", "[ -n \"$RANK\" ] || exec sleep " + mark});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(nothing_left());
}

TEST_F(LauncherTest, ATaskThatEndsBeforeItEntersEndsTheWaitOfTheOthers) {
  const auto result = run_to_end(
      {"--workers", "2", "--", "sh", "-c", "[ $RANK = 0 ] || exit 5; exec " + beside_self("hello_cluster")});
  EXPECT_EQ(result.exit_code, 5) << result.output;
  EXPECT_THAT(result.output, HasSubstr("the job failed: worker/1 exited with code 5"));
}

TEST_F(LauncherTest, ATaskThatEndsWellWithoutEnteringIsAnErrorForThoseWhoWait) {
  const int launcher =
      start({"--workers", "2", "--", "sh", "-c",
             "if [ $RANK = 0 ]; then exec " + beside_self("hello_cluster") + "; fi; exit 0"});
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output, HasSubstr("worker/1 exited with code 0 before it entered the job"));
}

TEST_F(LauncherTest, SixtyFourTasks) {
  const auto result = run_to_end({"--workers", "62", "--ps", "2", "--strategy", "none", "--oversubscribe",
                                  "--heartbeat-timeout", "60s", "--", "hello_cluster"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("the cluster has 64 tasks"), HasSubstr("worker/61 | hello from worker/61")));
}

TEST_F(LauncherTest, TwoNodes) {
  const ReservedPort port("127.0.0.1");
  const std::string coordinator = fmt::format("127.0.0.1:{}", port.port());
  std::vector<int> nodes;
  for (const char* node : {"1", "0"}) {
    nodes.push_back(start({"--workers", "3", "--ps", "1", "--strategy", "none", "--nnodes", "2",
                           "--node-rank", node, "--coordinator", coordinator, "--", "hello_cluster"}));
  }
  std::string output;
  for (const int node : nodes) {
    const auto result = cluster.wait(node, soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;
    output += result.output;
  }
  EXPECT_THAT(output, AllOf(HasSubstr("the cluster has 4 tasks"), HasSubstr("hello from worker/2"),
                            HasSubstr("no secret")));
}

TEST_F(LauncherTest, ANodeThatDoesNotComeIsNamed) {
  const ReservedPort port("127.0.0.1");
  const auto result =
      run_to_end({"--workers", "2", "--nnodes", "2", "--node-rank", "0", "--coordinator",
                  fmt::format("127.0.0.1:{}", port.port()), "--join-timeout", "15s", "--", "hello_cluster"});
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(
      result.output,
      AllOf(HasSubstr("still waiting for node 1 of 2: is muster run started there, with --node-rank 1?"),
            HasSubstr("node 1 of 2 did not come within 15.0 s (--join-timeout)")));
}

TEST_F(LauncherTest, AFailureOnOneNodeEndsTheOther) {
  const ReservedPort port("127.0.0.1");
  const std::string coordinator = fmt::format("127.0.0.1:{}", port.port());
  const auto node = [&](const char* rank) {
    return start({"--workers", "2", "--nnodes", "2", "--node-rank", rank, "--coordinator", coordinator, "--",
                  "sh", "-c", "[ $RANK = 0 ] || exit 4; exec sleep " + mark},
                 {{"MUSTER_SECRET", "s"}});
  };
  const int first = node("0");
  const int second = node("1");
  EXPECT_EQ(cluster.wait(second, soon()).exit_code, 4);
  const auto result = cluster.wait(first, soon());
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output, HasSubstr("worker/1 exited with code 4"));
  EXPECT_TRUE(nothing_left());
}

TEST_F(LauncherTest, NodesThatWereStartedDifferentlySayHow) {
  const ReservedPort port("127.0.0.1");
  const std::string coordinator = fmt::format("127.0.0.1:{}", port.port());
  const auto node = [&](const char* rank, const char* servers) {
    return start({"--workers", "2", "--ps", servers, "--strategy", "none", "--nnodes", "2", "--node-rank",
                  rank, "--coordinator", coordinator, "--", "true"});
  };
  const int first = node("0", "1");
  const int second = node("1", "0");
  for (const int launcher : {first, second}) {
    const auto result = cluster.wait(launcher, soon());
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.output, HasSubstr("--ps 1")) << launcher;
  }
}

TEST_F(LauncherTest, ALauncherThatWaitsForOtherNodesCanBeInterrupted) {
  const ReservedPort port("127.0.0.1");
  const int launcher = start({"--workers", "2", "--nnodes", "2", "--node-rank", "1", "--coordinator",
                              fmt::format("127.0.0.1:{}", port.port()), "--", "true"});
  cluster.wait_for_output(launcher, "still looking for the coordinator", soon());
  cluster.signal(launcher, SIGINT);
  EXPECT_EQ(cluster.wait(launcher, soon()).exit_code, 128 + SIGINT);
}

TEST_F(LauncherTest, LogFilesHoldEachTasksOwnOutputInAFolderForEachRun) {
  const auto folder = std::filesystem::temp_directory_path() / ("muster_logs." + mark);
  std::vector<std::filesystem::path> runs;
  for (const char* word : {"first", "second"}) {
    const auto result = run_to_end(
        {"--workers", "2", "--log-dir", folder, "--", "sh", "-c", fmt::format("echo {} $RANK", word)});
    EXPECT_EQ(result.exit_code, 0) << result.output;
    const std::string before = "logs are kept in ";
    ASSERT_THAT(result.output, HasSubstr(before));
    const size_t at = result.output.find(before) + before.size();
    runs.emplace_back(result.output.substr(at, result.output.find('\n', at) - at));
    EXPECT_EQ(runs.back().parent_path(), folder);
  }
  EXPECT_NE(runs[0], runs[1]);
  EXPECT_EQ(content_of(runs[0] / "worker-1.log"), "first 1\n");
  EXPECT_EQ(content_of(runs[1] / "worker-0.log"), "second 0\n");
  EXPECT_THAT(content_of(runs[1] / "launcher.log"), HasSubstr("tuned for"));
  std::filesystem::remove_all(folder);
}

TEST_F(LauncherTest, OutputCanBeOfSomeTasksWithTheTimeAndInAFileThatIsSaidToBeFull) {
  const auto result = run_to_end({"--workers", "3", "--timestamps", "--tee", "/dev/full", "--only",
                                  "worker/0,worker/2", "--", "sh", "-c", "echo I am $RANK"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(ContainsRegex("[0-9]:[0-9][0-9]\\.[0-9][0-9][0-9] worker/0 . I am 0"),
                                   HasSubstr("worker/2 | I am 2"), Not(HasSubstr("I am 1")),
                                   HasSubstr("/dev/full can't be written: No space left on device (ENOSPC)"),
                                   HasSubstr("/dev/full is not complete: ")));
}

TEST_F(LauncherTest, AnExitWithCode0InTheMiddleIsAFailureThatSaysSo) {
  for (const char* workers : {"1", "3"}) {
    const auto result =
        run_to_end({"--workers", workers, "--", self(), "--task-main=exit_in_the_middle", workers});
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_THAT(result.output, ContainsRegex("the job failed: worker/[01] exited with code 0 in the middle"));
  }
  const auto result = run_to_end(
      {"--workers", "2", "--strategy", "ps-async", "--", self(), "--task-main=exit_in_the_middle", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, ContainsRegex("worker/1 \\(pid [0-9]+\\) exited with code 0 in the middle"));
}

TEST_F(LauncherTest, SignalsThatAreIgnoredAtTheStartStayIgnored) {
  const Gate gate;
  const int launcher = cluster.start(
      {.command = {"sh", "-c",
                   fmt::format("trap '' HUP INT; exec {} run --workers 1 -- sh -c 'echo up; read "
                               "line < {}; echo survived'",
                               beside_self("muster"), gate.path())}});
  cluster.wait_for_output(launcher, "worker/0 | up", soon());
  cluster.signal_group(launcher, SIGHUP);
  cluster.signal_group(launcher, SIGINT);
  gate.open();
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("worker/0 | survived"));
}

TEST_F(LauncherTest, UserSignalsGoToTheTasks) {
  for (const int number : {SIGUSR1, SIGUSR2}) {
    const int launcher =
        start({"--workers", "2", "--", "sh", "-c",
               "trap 'echo saved; exit 0' USR1 USR2; echo up; while :; do sleep 0.05; done; : " + mark});
    cluster.wait_for_output(launcher, "worker/0 | up", soon());
    cluster.wait_for_output(launcher, "worker/1 | up", soon());
    cluster.signal(launcher, number);
    const auto result = cluster.wait(launcher, soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, AllOf(HasSubstr("passed on to 2 tasks"), HasSubstr("worker/0 | saved"),
                                     HasSubstr("worker/1 | saved")));
  }
  EXPECT_TRUE(nothing_left());
}

// The lines of one task, by what the launcher puts in front of them.
std::string lines_of(const std::string& task, const std::string& output) {
  std::string lines;
  std::istringstream all(output);
  for (std::string line; std::getline(all, line);) {
    if (line.starts_with(task)) lines += line + "\n";
  }
  return lines;
}

// The tasks have a shell around them, which SIGQUIT would end.
// As the third field of /proc/PID/stat, behind a name in parentheses: T is stopped.
char state_of(pid_t process) {
  const std::string text = content_of(fmt::format("/proc/{}/stat", process));
  const size_t name_end = text.rfind(')');
  return name_end == std::string::npos ? '?' : text.at(name_end + 2);
}

// For longer than a task may be silent.
TEST_F(LauncherTest, AfterCtrlZTheJobGoesOnWhereItWas) {
  const Gate gate;
  const int launcher = start({"--workers", "2", "--heartbeat-timeout", "3s", "--", self(),
                              "--task-main=hang_in_worker_1", gate.path()});
  const auto deadline = soon();
  cluster.wait_for_output(launcher, "worker/0 begins", deadline);
  cluster.wait_for_output(launcher, "worker/1 begins", deadline);
  cluster.signal(launcher, SIGTSTP);
  const pid_t process = cluster.pid(launcher);
  const auto all_stopped = [&] {
    if (state_of(process) != 'T') return false;
    const auto children = content_of(fmt::format("/proc/{0}/task/{0}/children", process));
    std::istringstream numbers(children);
    int stopped = 0;
    for (pid_t child = 0; numbers >> child;) stopped += state_of(child) == 'T' ? 1 : 0;
    return stopped >= 2;
  };
  while (!all_stopped() && !deadline.expired()) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(all_stopped());
  std::this_thread::sleep_for(7s);  // more than twice what a task may be silent for
  cluster.signal(launcher, SIGCONT);
  gate.open();
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("SIGTSTP: 2 tasks stop until this launcher is continued"),
                                   HasSubstr("worker/0 has gone on"), HasSubstr("worker/1 has gone on")));
}

TEST_F(LauncherTest, QuitPrintsTheStacksOfAllTasksAndTheJobGoesOn) {
  const Gate gate;
  const int launcher =
      start({"--workers", "2", "--", "sh", "-c",
             fmt::format("{} --task-main=hang_in_worker_1 {}; code=$?; echo ended $code; exit $code", self(),
                         gate.path())});
  cluster.wait_for_output(launcher, "worker/0 begins", soon());
  cluster.wait_for_output(launcher, "worker/1 begins", soon());
  const auto deadline = soon();
  std::string output;
  do {  // until both have come to where they hang
    const size_t before = cluster.output(launcher).size();
    cluster.signal_group(launcher, SIGQUIT);
    do {
      std::this_thread::sleep_for(10ms);
      output = cluster.output(launcher).substr(before);
    } while (!deadline.expired() && (output.find("end of the stacks of worker/0") == std::string::npos ||
                                     output.find("end of the stacks of worker/1") == std::string::npos));
  } while (!deadline.expired() && (output.find("JobContext::barrier") == std::string::npos ||
                                   output.find("poll_in_worker_1") == std::string::npos));
  gate.open();
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(output, HasSubstr("SIGQUIT: passed on to 2 tasks"));
  EXPECT_THAT(lines_of("worker/0", output),
              AllOf(ContainsRegex("stacks of the [0-9]+ threads of worker/0 \\(pid "),
                    HasSubstr("muster::detail::JobContext::barrier("),
                    HasSubstr("end of the stacks of worker/0, which waits in barrier 'held up' since")));
  EXPECT_THAT(lines_of("worker/1", output),
              AllOf(HasSubstr("poll_in_worker_1("), Not(HasSubstr("JobContext::barrier"))));
  EXPECT_THAT(result.output, AllOf(HasSubstr("worker/0 has gone on"), HasSubstr("worker/1 has gone on"),
                                   HasSubstr("worker/1 | ended 0")));
}

TEST_F(LauncherTest, QuitEndsTasksThatHaveNoHandlerForIt) {
  const int launcher = start({"--workers", "2", "--", "sh", "-c", "echo up; exec sleep " + mark});
  cluster.wait_for_output(launcher, "worker/0 | up", soon());
  cluster.wait_for_output(launcher, "worker/1 | up", soon());
  cluster.signal_group(launcher, SIGQUIT);
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 128 + SIGQUIT) << result.output;
  EXPECT_THAT(result.output, HasSubstr("was killed by signal 3 (SIGQUIT)"));
  EXPECT_TRUE(nothing_left());
}

TEST_F(LauncherTest, AReaderWhoGoesEndsTheJobAsSigpipeWould) {
  const std::string command = fmt::format(
      "{} run --workers 2 -- yes {} | head -n 1; echo code ${{PIPESTATUS[0]}}", beside_self("muster"), mark);
  const auto result = cluster.wait(cluster.start({.command = {"bash", "-c", command}}), soon());
  EXPECT_THAT(result.output, HasSubstr(fmt::format("code {}\n", 128 + SIGPIPE)));
  EXPECT_TRUE(nothing_left());
}

TEST_F(LauncherTest, TuningIsSaidInOneLineAndCanBeLeftOut) {
  const std::vector<std::string> show = {"--workers", "1",  "--",
                                         "sh",        "-c", "echo threads=$OMP_NUM_THREADS."};
  EXPECT_THAT(run_to_end(show).output,
              AllOf(HasSubstr("tuned for"), HasSubstr("OMP_NUM_THREADS="), Not(HasSubstr("threads=."))));
  EXPECT_THAT(run_to_end(show, {{"OMP_NUM_THREADS", "17"}}).output, HasSubstr("threads=17."));
  auto untuned = show;
  untuned.insert(untuned.begin(), "--no-tune");
  EXPECT_THAT(run_to_end(untuned).output, AllOf(Not(HasSubstr("tuned for")), HasSubstr("threads=.")));
}

TEST_F(LauncherTest, FlagsWithoutEffectAreRefusedBeforeAnythingStarts) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"--ps", "1"}, "--ps 1 has no effect with --strategy allreduce"},
      {{"--ps", "1", "--", "true", "--strategy", "ps-sync"},
       "--strategy after -- is told to the program alone"},
      {{"--strategy", "ps-async", "--ps", "0"}, "--strategy ps-async needs a parameter server"},
      {{"--hogwild"}, "--hogwild applies to ps-async and ps-ssp"},
      {{"--staleness", "0"}, "add --strategy ps-ssp or leave it out"},
      {{"--placement", "sliced"}, "--placement applies to ps-async, ps-sync, ps-ssp and ps-local"},
      {{"--slow", "worker/7:3x"}, "the job has no worker/7"},
      {{"--slow", "nonsense"}, "nonsense is not like worker/1:3x"},
      {{"--switch", "garbage"}, "garbage is not like 0:ps-sync"},
      {{"--tls-cert", "/nowhere"}, "add --tls-key and --tls-ca, or leave --tls-cert out"},
      {{"--accumulate", "2"}, "--accumulate is not a flag here"},
      {{"--workers", "100000"}, "add --oversubscribe"}};
  for (auto [arguments, expected] : cases) {
    arguments.insert(arguments.begin(), {"--workers", "2"});
    if (expected == "add --oversubscribe") arguments.erase(arguments.begin(), arguments.begin() + 2);
    arguments.insert(arguments.end(), {"--", "sh", "-c", "echo started", "--epochs", "1"});
    const auto result = run_to_end(arguments);
    EXPECT_EQ(result.exit_code, 2) << expected;
    EXPECT_THAT(result.output, AllOf(HasSubstr(expected), Not(HasSubstr("started"))));
  }
  const auto result = run_to_end({"--workers", "2", "--", "true"}, {{"MUSTER_STALENESS", "4"}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, HasSubstr("MUSTER_STALENESS applies to ps-ssp"));
}

TEST_F(LauncherTest, FlagsWithoutEffectAreRefusedByAProgramAloneToo) {
  const auto alone = [this](std::vector<std::string> flags, std::map<std::string, std::string> environment) {
    flags.insert(flags.begin(), beside_self("hello_cluster"));
    return cluster.wait(cluster.start({.command = flags, .environment = std::move(environment)}), soon());
  };
  for (const auto& result : {alone({"--staleness", "4"}, {}), alone({}, {{"MUSTER_STALENESS", "4"}}),
                             alone({"--tls-cert", "a"}, {}), alone({"--strategy", "ps-sync"}, {}),
                             alone({"--hogwild"}, {{"RANK", "0"}, {"WORLD_SIZE", "1"}})}) {
    EXPECT_EQ(result.exit_code, 2) << result.output;
    EXPECT_THAT(result.output, Not(HasSubstr("hello from")));
  }
  const auto result = alone({"--task", "worker/0", "--cluster", "worker=127.0.0.1:1"}, {});
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST_F(LauncherTest, ModesToSwitchBetweenStartAServer) {
  const auto result = run_to_end({"--workers", "2", "--switch", "0:ps-ssp,5:ps-async", "--staleness", "2",
                                  "--", "sh", "-c", "echo $MUSTER_STRATEGY; hello_cluster"},
                                 {{"PATH", testing::beside_self("") + ":/usr/bin:/bin"}});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("worker/0 | ps-ssp"), HasSubstr("the cluster has 3 tasks"),
                                   HasSubstr("hello from worker/1"), Not(HasSubstr("hello from ps/0"))));
}

TEST_F(LauncherTest, WhatIsForSeveralHostsIsAWarningOnOne) {
  const auto result = run_to_end({"--workers", "2", "--wire", "fp16", "--", "hello_cluster"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("--wire fp16 has no effect: all tasks are on one host"));
}

TEST_F(LauncherTest, TextsNeedNotBeUtf8) {
  const auto result = run_to_end({"--workers", "2", "--job-id", "job \xff", "--", self(),
                                  "--task-main=throw_argument_in_worker_1", "folder \xff"});
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("the job was aborted: worker/1"),
                    ContainsRegex("aborted: .*folder \xff is not a folder"), Not(HasSubstr("UTF-8"))));
}

TEST_F(LauncherTest, TermEndsItWhileItStartsTasks) {
  const auto result = run_to_end({"--workers", "1000", "--oversubscribe", "--", "sh", "-c",
                                  "[ $RANK != 0 ] || kill -TERM $PPID; exec sleep " + mark});
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("SIGTERM: stopping "), Not(HasSubstr("stopping 1000 tasks"))));
  EXPECT_TRUE(nothing_left());
}

TEST_F(LauncherTest, MistakesAreExplained) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"--workers", "0", "--", "true"}, "a job has at least one worker"},
      {{"--workers", "x", "--", "true"}, "--workers"},
      {{"--wrokers", "2", "--", "true"}, "did you mean --workers?"},
      {{"--workers", "2"}, "there is no program to run"},
      {{"--ssh", "ssh", "--", "true"}, "--ssh has no effect without --hosts"},
      {{"--hosts", "h1", "--nnodes", "1", "--", "true"}, "--nnodes is for nodes that are started one by one"},
      {{"--hosts", "h1", "--hostfile", "f", "--", "true"}, "give one of them"},
      {{"--hosts", "localhost,h2", "--", "true"}, "the others can't reach localhost by that name"},
      {{"--", "no-such-program"}, "neither in PATH nor beside muster"},
      {{"--nnodes", "2", "--workers", "2", "--", "true"}, "needs --coordinator"},
      {{"--nnodes", "2", "--workers", "2", "--node-rank", "2", "--coordinator", "h:1", "--", "true"},
       "--node-rank 2"},
      {{"--interface", "nosuch", "--", "true"}, "no network interface fits 'nosuch'"},
      {{"--log-dir", "/proc/nowhere", "--", "true"}, "/proc/nowhere"},
      {{"--only", "worker/1", "--", "true"}, "--only worker/1: the job has no such task"}};
  for (const auto& [arguments, expected] : cases) {
    const auto result = run_to_end(arguments);
    EXPECT_NE(result.exit_code, 0) << expected;
    EXPECT_THAT(result.output, HasSubstr(expected));
  }
  const auto result = run_to_end({"--", "true"}, {{"MUSTER_LOGLEVEL", "info"}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output,
              HasSubstr("MUSTER_LOGLEVEL is not one that Muster knows; did you mean MUSTER_LOG_LEVEL?"));
}

}  // namespace
}  // namespace muster::detail
