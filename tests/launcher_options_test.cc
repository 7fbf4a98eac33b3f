// The flags of `muster run` that say what tasks find, and the commands of `muster` that only tell.

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/cpu.h"
#include "muster/testing/process_cluster.h"

namespace muster::detail {
namespace {

using ::testing::AllOf;
using testing::beside_self;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProcessCluster;
using testing::soon;

class LauncherOptionsTest : public ::testing::Test {
 protected:
  ~LauncherOptionsTest() override { std::filesystem::remove(file); }

  ProcessCluster::Result muster(std::vector<std::string> arguments,
                                std::map<std::string, std::string> environment = {}) {
    arguments.insert(arguments.begin(), beside_self("muster"));
    return run(std::move(arguments), std::move(environment));
  }
  ProcessCluster::Result run(std::vector<std::string> command,
                             std::map<std::string, std::string> environment = {}) {
    return cluster.wait(cluster.start({.command = std::move(command), .environment = std::move(environment)}),
                        soon());
  }
  void write_file(const std::string& text) const { std::ofstream(file) << text; }

  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / fmt::format("muster-options-{}", getpid());
  ProcessCluster cluster;
};

TEST_F(LauncherOptionsTest, AFileCanHaveEveryFlagAndTheProgram) {
  write_file(
      "\xEF\xBB\xBF"  // as some editors write
      "workers = 2\n"
      "# our job\n"
      "strategy = \"ps-sync\"\n"
      "ps = 2\n"
      "no-tune = true\n"
      "only = [\"worker/1\", \"ps\"]\n"
      "env = [\"FIRST=1\", \"SECOND=two words\"]\n"
      "heartbeat-timeout = \"33s\"\n"
      "program = [\"sh\", \"-c\", \"echo $MUSTER_STRATEGY $MUSTER_HEARTBEAT_TIMEOUT $FIRST $SECOND.\"]\n");
  const auto result = muster({"run", "--config", file});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  for (const char* task : {"worker/1", "ps/0    ", "ps/1    "})
    EXPECT_THAT(result.output, HasSubstr(fmt::format("{} | ps-sync 33s 1 two words.", task)));
  EXPECT_THAT(result.output, AllOf(Not(HasSubstr("worker/0 |")), Not(HasSubstr("tuned"))));
}

TEST_F(LauncherOptionsTest, ArgumentsOfTheProgramAreLeftAsTheyAre) {
  const auto result = muster({"run", "--", "sh", "-c", "printf '<%s>' \"$@\"; echo", "sh", "--layers",
                              "[64,64]", "[]", "[a, b]", "#x"});
  EXPECT_THAT(result.output, HasSubstr("<--layers><[64,64]><[]><[a, b]><#x>"));
}

TEST_F(LauncherOptionsTest, ANumberSignInQuotesIsNoCommentAndVariablesAddUp) {
  write_file(
      "env = [\"FIRST=x#y\", 'SECOND=2'] # \"a comment\"\n"
      "program = [\"sh\", \"-c\", \"echo $FIRST $SECOND $THIRD issue #12\"]\n");
  EXPECT_THAT(muster({"run", "--config", file, "--env", "THIRD=3"}).output, HasSubstr("| x#y 2 3 issue"));
  EXPECT_THAT(muster({"run", "--config", file, "--env", "SECOND=two"}).output, HasSubstr("| x#y two issue"))
      << "what is typed comes first";
}

TEST_F(LauncherOptionsTest, TheCommandLineComesBeforeTheFileAndTheFileBeforeVariables) {
  write_file(
      "workers = 5\nstrategy = \"ps-async\"\nlog-level = \"warning\"\nheartbeat-timeout = \"33s\"\n"
      "hogwild = false\n");
  const auto result =
      muster({"run", "--config", file, "--workers", "1", "--", "sh", "-c",
              "echo $WORLD_SIZE $MUSTER_LOG_LEVEL $MUSTER_HEARTBEAT_TIMEOUT $MUSTER_HOGWILD."},
             {{"MUSTER_LOG_LEVEL", "error"}, {"MUSTER_HOGWILD", "on"}});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("worker/0 | 1 warning 33s ."));
}

TEST_F(LauncherOptionsTest, MistakesInAFileAreNamedWithTheFile) {
  const std::pair<const char*, const char*> cases[] = {
      {"wrokers = 2\n", "wrokers is not a flag of run; did you mean workers?"},
      {"workers = two\n", "--workers two is not a whole number"},
      {"strategy = all\n", "all is not one of allreduce"},
      {"workers = 2\nworkers = 3\n", "--workers: At Most 1 required but received 2"},
      {"hogwild = \"maybe\"\n", "--hogwild maybe is not true or false"},
      {"timestamps = \"perhaps\"\n", "--timestamps perhaps is not true or false"},
      {"timestamps = 3\n", "--timestamps 3 is not true or false"},
      {"workers\x01 = 2\n", "is not a file of text"},
      {"[run]\nworkers = 2\n", "it has a section, [run]"},
      {"config = other\n", "config is not a flag of run"},
      {"workers =\n", "workers: the value is empty"},
      {"log-dir = \"\"\n", "log-dir: the value is empty"},
      {"staleness = 4\n", "--staleness applies to ps-ssp"}};
  for (const auto& [text, expected] : cases) {
    write_file(text);
    const auto result = muster({"run", "--config", file, "--", "true"});
    EXPECT_EQ(result.exit_code, 2) << text << result.output;
    EXPECT_THAT(result.output, HasSubstr(expected));
  }
  const auto result = muster({"run", "--config", "/nowhere/job.toml", "--", "true"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, HasSubstr("--config /nowhere/job.toml can't be read: No such file"));
  const auto endless = muster({"run", "--config", "/dev/zero", "--", "true"});
  EXPECT_EQ(endless.exit_code, 2);
  EXPECT_THAT(endless.output, HasSubstr("--config /dev/zero is larger than 1048576 bytes"));
}

// As the shell's <(...) gives.
TEST_F(LauncherOptionsTest, AFileOfFlagsMayBeAPipe) {
  const auto result =
      run({"bash", "-c", beside_self("muster") + " run --config <(echo workers = 2) -- echo up"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("worker/0 | up"), HasSubstr("worker/1 | up")));
}

// As of a script that has not set a variable.
TEST_F(LauncherOptionsTest, AnEmptyValueIsAMistake) {
  for (const char* flag :
       {"--workers", "--ps", "--log-dir", "--tee", "--hosts", "--config", "--job-id", "--grace"}) {
    const auto result = muster({"run", flag, "", "--", "true"});
    EXPECT_EQ(result.exit_code, 2) << flag << ": " << result.output;
    EXPECT_THAT(result.output, HasSubstr(fmt::format("{}: the value is empty", flag)));
  }
}

TEST_F(LauncherOptionsTest, VariablesAreForTheTasks) {
  const auto result = muster({"run", "--env", "FIRST=a=b, c", "--env", "SECOND", "--", "sh", "-c",
                              "echo $FIRST/$SECOND/$OMP_NUM_THREADS", "--env", "x"},
                             {{"SECOND", "2"}});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("worker/0 | a=b, c/2/"));
  const std::pair<const char*, const char*> cases[] = {
      {"=x", "expected NAME=value"},
      {"MUSTER_STRATEGY=ps-sync", "has a flag of `muster run`"},
      {"MUSTER_TEST_NOT_SET_HERE", "has a flag"},
      {"MASTER_PORT=29500", "tasks get it from `muster run`, or not at all"},
      {"OMPI_MCA_btl=tcp", "tasks get it from `muster run`, or not at all"},
      {"NOT_SET_HERE_AT_ALL", "it is not set here; give it a value"}};
  for (const auto& [variable, expected] : cases) {
    const auto refused = muster({"run", "--env", variable, "--", "true"});
    EXPECT_EQ(refused.exit_code, 2) << refused.output;
    EXPECT_THAT(refused.output, HasSubstr(expected));
  }
}

// The variables of the task that launches are of another job.
TEST_F(LauncherOptionsTest, ATaskMayLaunchAJobOfItsOwn) {
  const auto result = muster({"run", "--workers", "2", "--", beside_self("muster"), "run", "--workers", "2",
                              "--", beside_self("hello_cluster")});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("worker/0 | worker/1 | hello from worker/1"),
                                   HasSubstr("worker/1 | worker/1 | hello from worker/1")));
}

TEST_F(LauncherOptionsTest, AStrategyThatNobodyTrainsWithIsSaid) {
  EXPECT_THAT(
      muster({"run", "--strategy", "ps-sync", "--", beside_self("hello_cluster")}).output,
      HasSubstr("the program made no Trainer and no ShardedEmbedding: --strategy ps-sync had no effect"));
  EXPECT_THAT(muster({"run", "--strategy", "ps-sync", "--", "true"}).output,
              HasSubstr("--strategy ps-sync had no effect: does the program call muster::run?"));
}

TEST_F(LauncherOptionsTest, FlagsOfTrainingThatNobodyTrainsWithAreSaid) {
  EXPECT_THAT(muster({"run", "--precision", "bf16", "--slow", "worker/0:2x", "--on-nan", "skip", "--",
                      beside_self("hello_cluster")})
                  .output,
              HasSubstr("made no Trainer and no ShardedEmbedding: --precision bf16, --slow worker/0:2x, "
                        "--on-nan skip had no effect"));
  EXPECT_THAT(
      muster({"run", "--engine", "gloo", "--algorithm", "ring", "--", beside_self("hello_cluster")}).output,
      HasSubstr("the program used no collectives: --engine gloo, --algorithm ring had no effect"));
  EXPECT_THAT(muster({"run", "--", beside_self("hello_cluster")}).output, Not(HasSubstr("no effect")));
  EXPECT_THAT(muster({"run", "--ps", "1", "--strategy", "none", "--", beside_self("hello_cluster")}).output,
              Not(HasSubstr("no effect")));
}

TEST_F(LauncherOptionsTest, ProgramsThatDoNotEnterTheJobAreSaid) {
  EXPECT_THAT(
      muster({"run", "--precision", "bf16", "--engine", "native", "--", "true"}).output,
      HasSubstr("--precision bf16, --engine native had no effect: does the program call muster::run?"));
  EXPECT_THAT(
      muster({"run", "--strategy", "none", "--wire", "bf16", "--heartbeat-timeout", "5s", "--", "true"})
          .output,
      HasSubstr("--heartbeat-timeout 5s, --wire bf16 had no effect: does the program call muster::run?"));
  EXPECT_THAT(
      muster({"run", "--workers", "2", "--strategy", "allreduce", "--", beside_self("hello_cluster")}).output,
      HasSubstr("--strategy allreduce had no effect"))
      << "a default that was given counts as given";
  EXPECT_THAT(muster({"run", "--workers", "2", "--", "true"}).output,
              HasSubstr("not all tasks entered the job, so that Muster did not train them together"));
  EXPECT_THAT(muster({"run", "--", "true"}).output, Not(HasSubstr("entered")));
  EXPECT_THAT(muster({"run", "--workers", "2", "--strategy", "none", "--", "true"}).output,
              Not(HasSubstr("entered")));
}

TEST_F(LauncherOptionsTest, InputThatNoTaskGetsIsSaid) {
  write_file("1\n2\n");
  const auto from_shell = [this](const std::string& line) { return run({"sh", "-c", line}).output; };
  const auto from = [&](const std::string& redirection) {
    return from_shell(beside_self("muster") + " run -- wc -c " + redirection);
  };
  const auto said = HasSubstr("tasks have an empty standard input, and not this one");
  EXPECT_THAT(from("<" + file.string()), AllOf(said, HasSubstr("worker/0 | 0")));
  EXPECT_THAT(from("</dev/null"), Not(said));
  const std::string ready = file.string() + ".ready";
  EXPECT_THAT(from_shell("{ printf 12; : >" + ready + "; } | { until [ -e " + ready + " ]; do :; done; " +
                         beside_self("muster") + " run -- true; }"),
              said);
  std::filesystem::remove(ready);
}

TEST_F(LauncherOptionsTest, ALauncherThatIsStartedSeveralTimesSaysSo) {
  const std::map<std::string, std::string> of_rank0 = {
      {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  const auto said = HasSubstr("Open MPI started `muster run` 2 times, and each starts a job of its own");
  EXPECT_THAT(muster({"run", "--", "true"}, of_rank0).output, said);
  auto of_rank1 = of_rank0;
  of_rank1["OMPI_COMM_WORLD_RANK"] = "1";
  EXPECT_THAT(muster({"run", "--", "true"}, of_rank1).output, Not(said)) << "one of them says it";
  EXPECT_THAT(
      muster({"run", "--nnodes", "2", "--coordinator", "127.0.0.1:2", "--dry-run", "--", "true"}, of_rank0)
          .output,
      Not(said));
  EXPECT_THAT(
      muster({"run", "--", "true"},
             {{"MUSTER_TASK", "worker/0"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}})
          .output,
      Not(said))
      << "a task may launch a job of its own";
}

TEST_F(LauncherOptionsTest, ADryRunPrintsCommandsThatAShellTakes) {
  const auto result = muster({"run", "--workers", "2", "--strategy", "ps-sync", "--dry-run", "--env",
                              "WHAT=it's here", "--", "sh", "-c", "echo $WHAT as $MUSTER_TASK of $TF_CONFIG"},
                             {{"SLURM_PROCID", "3"}});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("# ps/0 of 3 tasks, on any core\nenv"), HasSubstr("# worker/1"),
                                   HasSubstr("-u SLURM_PROCID"), HasSubstr("MUSTER_STRATEGY=ps-sync"),
                                   HasSubstr("MUSTER_SECRET=..."), Not(HasSubstr("as /job"))));
  const auto executed = run({"sh", "-c", result.output});
  EXPECT_EQ(executed.exit_code, 0) << executed.output;
  EXPECT_THAT(executed.output, HasSubstr("it's here as /job:worker/task:1 of {\"cluster\""));
  const auto refused = muster({"run", "--workers", "2", "--staleness", "4", "--dry-run", "--", "true"});
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
}

TEST_F(LauncherOptionsTest, TasksAreBoundToTheirShareOfTheCores) {
  const auto result =
      muster({"run", "--workers", "2", "--bind", "cores", "--", "sh", "-c", "echo $RANK $(taskset -pc $$)"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, ContainsRegex("bound to cores: worker/0 to [0-9,-]+, worker/1 to [0-9,-]+"));
  const auto cores_of = [&](const std::string& before) {
    const size_t at = result.output.find(before);
    EXPECT_NE(at, std::string::npos) << before << " in " << result.output;
    const size_t from = at + before.size();
    return result.output.substr(from, result.output.find_first_of(",\n", from) - from);
  };
  const std::string first = cores_of("bound to cores: worker/0 to ");
  EXPECT_THAT(result.output, ContainsRegex(fmt::format("0 pid [0-9]+'s current affinity list: {}", first)));
  EXPECT_EQ(first == cores_of("worker/1 to "), available_cores() == 1);
  const auto refused = muster({"run", "--bind", "socket", "--", "true"});
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
}

TEST_F(LauncherOptionsTest, InfoTellsWhatAReportNeedsButNoSecret) {
  const auto result = muster(
      {"info"}, {{"MUSTER_SECRET", "do-not-tell"}, {"SLURM_JWT", "do-not-tell"}, {"OMP_NUM_THREADS", "3"}});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  for (const char* line :
       {"muster       0.", "\nlibtorch ", "\ngRPC  ", "\nprocessor ", "\ncores ", "\nBLAS ",
        "\nlauncher     none: a program would run alone", "\ninterfaces   lo 127.0.0.1",
        "\nlimits       open files ", "OMP_NUM_THREADS=3", "MUSTER_SECRET=(set)"})
    EXPECT_THAT(result.output, HasSubstr(line));
  EXPECT_THAT(result.output, Not(HasSubstr("do-not-tell")));
  const auto under_mpi = muster({"info"}, {{"OMPI_COMM_WORLD_RANK", "1"},
                                           {"OMPI_COMM_WORLD_SIZE", "4"},
                                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                           {"PMIX_NAMESPACE", "1"}});
  EXPECT_EQ(under_mpi.exit_code, 0) << under_mpi.output;
  EXPECT_THAT(under_mpi.output, HasSubstr("Open MPI: this process is worker/1 of 4 tasks"));
}

TEST_F(LauncherOptionsTest, BashCompletesCommandsAndFlags) {
  const std::string script = fmt::format(
      "source <({} completion bash)\n"
      "complete_line() {{ COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _muster; "
      "echo \"$# ${{COMPREPLY[*]}}\"; }}\n"
      "complete_line muster ru\n"
      "complete_line muster run --str\n"
      "complete_line muster run --workers 2 --heart\n"
      "complete_line muster run --workers 2 -- --str\n",
      beside_self("muster"));
  const auto result = run({"bash", "-c", script});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.output, "2 run\n3 --strategy\n5 --heartbeat-timeout\n6 \n");
}

TEST_F(LauncherOptionsTest, TheManualHasEveryFlagThatHelpHas) {
  const std::string help = muster({"run", "--help"}).output;
  const auto page = muster({"manual", "muster-run"});
  const auto markdown = muster({"manual", "--format", "markdown"});
  EXPECT_EQ(page.exit_code, 0);
  EXPECT_EQ(markdown.exit_code, 0);
  std::string manual = page.output;
  for (size_t at = 0; (at = manual.find("\\-", at)) != std::string::npos;) manual.replace(at, 2, "-");
  int flags = 0;
  for (size_t at = 0; (at = help.find("\n  --", at)) != std::string::npos; ++at, ++flags) {
    const std::string flag = help.substr(at + 3, help.find_first_of(" \n", at + 3) - at - 3);
    EXPECT_THAT(manual, HasSubstr(fmt::format("\\fB{}\\fR", flag)));
    EXPECT_THAT(markdown.output, ContainsRegex(fmt::format("`{}[ `]", flag)));
  }
  EXPECT_GT(flags, 40);
  EXPECT_EQ(muster({"manual", "muster-nothing"}).exit_code, 2);
}

}  // namespace
}  // namespace muster::detail
