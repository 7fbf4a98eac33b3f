// The same program under launchers that know nothing of Muster: a real mpirun, a real torchrun, and the
// variables of torchrun, TensorFlow and Slurm.

#include <signal.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "run_task.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/net/reserved_port.h"
#include "muster/testing/mpi_environment.h"
#include "muster/testing/process_cluster.h"
#include "muster/testing/test_main.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ProcessCluster;
using testing::soon;
using Variables = std::map<std::string, std::string>;

std::string hello() {
  return testing::beside_self("hello_cluster");
}

// Starts one hello_cluster for each set of variables; all must end well. Gives the output of the first.
std::string run_all(const std::vector<Variables>& tasks) {
  ProcessCluster cluster;
  for (const auto& variables : tasks) cluster.start({.command = {hello()}, .environment = variables});
  std::string first;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const auto result = cluster.wait(static_cast<int>(i), soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;
    if (i == 0) first = result.output;
  }
  return first;
}

TEST(Mpirun, RanksFindEachOther) {
  const testing::MpiEnvironment environment;
  ProcessCluster cluster;
  const int mpirun = cluster.start(
      {.command = {MUSTER_TEST_MPIRUN, "-n", "3", hello()}, .environment = environment.variables()});
  const auto result = cluster.wait(mpirun, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("hello from worker/0 (started by: Open MPI)"),
                                   HasSubstr("hello from worker/2"), HasSubstr("the cluster has 3 tasks")));
}

TEST(Mpirun, TwoJobsOnOneHostStayApart) {
  const std::array<testing::MpiEnvironment, 2> environments;
  ProcessCluster cluster;
  for (const auto& environment : environments)
    cluster.start(
        {.command = {MUSTER_TEST_MPIRUN, "-n", "2", hello()}, .environment = environment.variables()});
  for (int job = 0; job < 2; ++job) {
    const auto result = cluster.wait(job, soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("the cluster has 2 tasks"));
  }
}

// Runs `command` under torchrun as docs/launching.md has it for Debian 12, which newer versions take as well.
// Its rendezvous is on a free port, since its usual one is the same for all jobs of a host, and it looks
// after its workers ten times a second.
ProcessCluster::Result run_torchrun(const std::vector<std::string>& command) {
  const auto logs =
      std::filesystem::temp_directory_path() / fmt::format("foreign_launcher_test.{}", getpid());
  std::vector<std::string> full = {
      "bash", "-c",
      MUSTER_TEST_TORCHRUN
      " --nproc_per_node 2 --no_python -r 1 -t 1 --log_dir \"$0\" --rdzv_backend c10d"
      " --rdzv_endpoint localhost:0 --monitor_interval 0.1 \"$@\"",
      logs.string()};
  full.insert(full.end(), command.begin(), command.end());
  ProcessCluster cluster;
  auto result = cluster.wait(cluster.start({.command = full}), soon());
  std::filesystem::remove_all(logs);
  return result;
}

int fail_as_worker_1(const std::vector<std::string>&) {
  return run_task([](Job& job) {
    fmt::print("{} is here\n", job.task().name);
    job.barrier("all are here");
    if (job.rank() == 1) throw Error("the disk of this task is full");
    job.barrier("the end");
  });
}

const testing::TaskRegistration kFailAsWorker1("fail_as_worker_1", fail_as_worker_1);

TEST(Torchrun, StartsWorkersThatFindEachOther) {
  const auto result = run_torchrun({hello()});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("[default0]:hello from worker/0 (started by: torchrun)"),
                                   HasSubstr("[default1]:hello from worker/1 (started by: torchrun)"),
                                   HasSubstr("the cluster has 2 tasks")));
}

TEST(Torchrun, EndsWithAnErrorWhenAWorkerFails) {
  const auto result = run_torchrun({testing::self_path(), "--task-main=fail_as_worker_1"});
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("worker/0 is here"), HasSubstr("worker/1 is here"),
                                   HasSubstr("the disk of this task is full")));
}

TEST(Torchrun, RanksFindEachOtherBesideItsOwnStore) {
  const ReservedPort master("127.0.0.1");
  std::vector<Variables> tasks;
  for (const char* rank : {"0", "1"}) {
    tasks.push_back({{"RANK", rank},
                     {"WORLD_SIZE", "2"},
                     {"LOCAL_RANK", rank},
                     {"LOCAL_WORLD_SIZE", "2"},
                     {"MASTER_ADDR", "127.0.0.1"},
                     {"MASTER_PORT", std::to_string(master.port())}});
  }
  EXPECT_THAT(run_all(tasks), AllOf(HasSubstr("started by: torchrun"), HasSubstr("the cluster has 2 tasks")));
}

TEST(TfConfig, ChiefWorkersAndServersFindEachOther) {
  const ReservedPort a("127.0.0.1"), b("127.0.0.1"), c("127.0.0.1");
  const auto variables = [&](const char* type) {
    return Variables{
        {"TF_CONFIG", fmt::format(R"({{"cluster": {{"chief": ["127.0.0.1:{}"], "worker": ["127.0.0.1:{}"],
                                                   "ps": ["127.0.0.1:{}"]}}, "task": {{"type": "{}", "index": 0}}}})",
                                  a.port(), b.port(), c.port(), type)},
        {"MUSTER_STRATEGY", "none"}};
  };
  EXPECT_THAT(run_all({variables("chief"), variables("worker"), variables("ps")}),
              AllOf(HasSubstr("hello from worker/0 (started by: TF_CONFIG)"),
                    HasSubstr("greetings from worker/1"), HasSubstr(": a server")));
}

TEST(Slurm, TasksOfAStepFindEachOther) {
  std::vector<Variables> tasks;
  const std::string job = std::to_string(getpid());
  for (const char* rank : {"0", "1", "2"}) {
    tasks.push_back({{"SLURM_JOB_ID", job},
                     {"SLURM_STEP_ID", "0"},
                     {"SLURM_PROCID", rank},
                     {"SLURM_NTASKS", "3"},
                     {"SLURM_STEP_NODELIST", "localhost"},
                     {"SLURM_STEP_TASKS_PER_NODE", "3"}});
  }
  EXPECT_THAT(run_all(tasks), AllOf(HasSubstr("started by: Slurm"), HasSubstr("the cluster has 3 tasks")));
}

TEST(Conflict, IsAnErrorThatShowsBoth) {
  ProcessCluster cluster;
  const int task = cluster.start({.command = {hello()},
                                  .environment = {{"RANK", "0"},
                                                  {"WORLD_SIZE", "2"},
                                                  {"MASTER_ADDR", "h"},
                                                  {"MASTER_PORT", "1"},
                                                  {"OMPI_COMM_WORLD_RANK", "1"},
                                                  {"OMPI_COMM_WORLD_SIZE", "2"},
                                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}});
  const auto result = cluster.wait(task, soon());
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, AllOf(HasSubstr("torchrun says /job:worker/task:0"),
                                   HasSubstr("Open MPI says /job:worker/task:1")));
}

TEST(ChiefDeath, IsNoticedByTheOthersWhenTheChiefHostsTheCoordinator) {
  const ReservedPort a("127.0.0.1"), b("127.0.0.1"), c("127.0.0.1");
  const std::string spec =
      fmt::format("worker=127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}", a.port(), b.port(), c.port());
  ProcessCluster cluster;
  const auto start = [&](int index) {
    return cluster.start(
        {.command = {hello(), "--task", fmt::format("/job:worker/task:{}", index), "--cluster", spec}});
  };
  const int chief = start(0);
  const int worker = start(1);
  cluster.wait_for_output(chief, "still waiting for /job:worker/task:2 (2 of 3 tasks entered)", soon());
  cluster.signal(chief, SIGKILL);
  const auto result = cluster.wait(worker, soon());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("the coordinator at 127.0.0.1"));
}

}  // namespace
}  // namespace muster::detail
