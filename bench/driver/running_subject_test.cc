#include "bench/driver/running_subject.h"

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/text.h"

namespace muster::detail::bench {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A rank as a shell script: it answers each command with its own name and the command, but for a few.
constexpr const char* kRank = R"(
  exec 3<"$1/$2.in" 4>"$1/$2.out"
  echo $$ >"$1/$2.pid"
  echo "ready $$" >&4
  while read -r command <&3; do
    case $command in
      quit) exit 0 ;;
      die-$2) echo "rank $2 has had enough" >&2; exit 7 ;;
      hang-$2) exec sleep 1000 ;;
      err-$2) echo "error no memory" >&4 ;;
      err-*) exec sleep 1000 ;;
      *) echo "$2 heard $command" >&4 ;;
    esac
  done)";

/// Whether it stops within some seconds: it does so when it next gets a core.
bool is_stopped_soon(pid_t pid) {
  for (const auto deadline = Deadline::after(20s); !deadline.expired(); std::this_thread::sleep_for(1ms)) {
    std::ifstream file(fmt::format("/proc/{}/stat", pid));
    std::string number;
    std::string name;
    char state = 0;
    if (file >> number >> name >> state && state == 'T') return true;
  }
  return false;
}

class RunningSubjectTest : public ::testing::Test {
 protected:
  ~RunningSubjectTest() override { std::filesystem::remove_all(folder); }

  std::unique_ptr<RunningSubject> start(const std::string& script = kRank, bool spins = false,
                                        std::chrono::milliseconds timeout = 20s) {
    SubjectCommand command = {
        .of = {"fake", "shell"}, .workers = 2, .processes = {}, .variables = {}, .spins = spins};
    for (const char* rank : {"0", "1"})
      command.processes.push_back({"/bin/sh", "-c", script, "rank", "DIR", rank});
    return std::make_unique<RunningSubject>(
        command,
        RunningSubject::Options{
            .folder = folder, .environment = Environment::of_process(), .timeout = timeout},
        reaper, signals);
  }

  static std::string failure_of(RunningSubject& subject, const std::string& command) {
    try {
      subject.ask(command);
    } catch (const SubjectFailed& error) {
      return error.what();
    }
    return "no failure";
  }

  bool is_running(int rank) const {
    std::ifstream file(folder / fmt::format("{}.pid", rank));
    pid_t pid = 0;
    file >> pid;
    return pid > 0 && kill(pid, 0) == 0;
  }

  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("running_subject_test.{}", getpid());
  OrphanReaper reaper;
  const SignalWatch signals;
};

TEST_F(RunningSubjectTest, OneThatSpinsIsStoppedBetweenItsTurns) {
  auto subject = start(kRank, /*spins=*/true);
  subject->await_ready();
  for (const char* command : {"one", "two"}) {
    for (const pid_t pid : subject->pids()) EXPECT_TRUE(is_stopped_soon(pid));
    EXPECT_EQ(subject->ask(command).size(), 2u);
  }
  const auto start_of_end = std::chrono::steady_clock::now();
  subject.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start_of_end, 4s);  // by the word quit
}

TEST_F(RunningSubjectTest, AnswersComeInTheOrderOfRanks) {
  const auto subject = start();
  subject->await_ready();
  EXPECT_THAT(subject->ask("one"), ElementsAre("0 heard one", "1 heard one"));
  EXPECT_THAT(subject->ask("two"), ElementsAre("0 heard two", "1 heard two"));
}

TEST_F(RunningSubjectTest, VariablesAreTakenOutAndAdded) {
  const char* script = R"(
    exec 3<"$1/0.in" 4>"$1/0.out"
    echo "ready $$" >&4
    while read -r command <&3 && [ "$command" != quit ]; do echo "${GONE:-nothing} $WHAT $KEPT" >&4; done)";
  const SubjectCommand command = {.of = {"fake", "shell"},
                                  .processes = {{"/bin/sh", "-c", script, "rank", "DIR"}},
                                  .variables = {{"WHAT", "other"}},
                                  .without = {"GONE", "WHAT"}};
  auto environment = Environment::of_process();
  for (const char* name : {"GONE", "WHAT", "KEPT"}) environment.set(name, "inherited");
  RunningSubject subject(command, {.folder = folder, .environment = environment, .timeout = 20s}, reaper,
                         signals);
  subject.await_ready();
  EXPECT_THAT(subject.ask("what"), ElementsAre("nothing other inherited"));
}

TEST_F(RunningSubjectTest, NothingIsLeftRunning) {
  auto subject = start();
  subject->await_ready();
  EXPECT_TRUE(is_running(0) && is_running(1));
  subject.reset();
  EXPECT_FALSE(is_running(0) || is_running(1));
}

TEST_F(RunningSubjectTest, ARankThatDiesIsNamedWithItsLastWords) {
  auto subject = start();
  subject->await_ready();
  EXPECT_THAT(failure_of(*subject, "die-1"),
              AllOf(HasSubstr("fake (shell), 2 ranks: rank 1 (pid "),
                    HasSubstr("ended when it was to answer 'die-1'"), HasSubstr("exited with code 7"),
                    HasSubstr("rank 1 has had enough")));
  subject.reset();
  EXPECT_FALSE(is_running(0));
}

TEST_F(RunningSubjectTest, ARankThatHangsIsNamedAtTheDeadline) {
  auto subject = start(kRank, /*spins=*/false, 300ms);
  subject->await_ready();
  EXPECT_THAT(failure_of(*subject, "hang-0"), HasSubstr("rank 0 did not answer 'hang-0' within 0.3 s"));
  subject.reset();
  EXPECT_FALSE(is_running(0) || is_running(1));
}

TEST_F(RunningSubjectTest, ARankThatReportsAnErrorIsNotMaskedByThoseThatWaitForIt) {
  const auto subject = start();
  subject->await_ready();
  EXPECT_THAT(failure_of(*subject, "err-1"),
              HasSubstr("rank 1 was to answer 'err-1' and said 'error no memory'"));
}

TEST_F(RunningSubjectTest, AProgramThatDoesNotStartIsAFailure) {
  const auto subject = start("echo no library; exit 3");
  try {
    subject->await_ready();
    FAIL();
  } catch (const SubjectFailed& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("ranks 0, 1 did not start"), HasSubstr("sh exited with code 3"),
                                    HasSubstr("no library")));
  }
}

TEST_F(RunningSubjectTest, ASignalEndsTheWait) {
  const auto subject = start();
  subject->await_ready();
  kill(getpid(), SIGINT);
  try {
    subject->ask("hang-0");
    FAIL();
  } catch (const Interrupted& interrupted) {
    EXPECT_EQ(interrupted.signal(), SIGINT);
  }
}

}  // namespace
}  // namespace muster::detail::bench
