#include "muster/cluster/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/base/log.h"

namespace muster::detail {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Identity identity(Environment environment) {
  Config config;
  config.read_environment(std::move(environment));
  return find_identity(config);
}

std::string message_of(const Environment& environment) {
  try {
    identity(environment);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

Environment operator+(Environment a, const std::map<std::string, std::string>& more) {
  for (const auto& [name, value] : more) a.set(name, value);
  return a;
}

const Environment kTorchrun{{"RANK", "1"},         {"WORLD_SIZE", "4"},
                            {"LOCAL_RANK", "1"},   {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "h1"}, {"MASTER_PORT", "29500"}};
const Environment kOpenMpi{{"OMPI_COMM_WORLD_RANK", "0"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                           {"PMIX_NAMESPACE", "77"},
                           {"PMIX_RANK", "0"}};
const Environment kSlurm{{"SLURM_STEP_ID", "3"},
                         {"SLURM_JOB_ID", "1234"},
                         {"SLURM_PROCID", "4"},
                         {"SLURM_NTASKS", "5"},
                         {"SLURM_STEP_NUM_TASKS", "5"},
                         {"SLURM_STEP_NODELIST", "gpu[01-03,07]"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2,1(x3)"}};

TEST(Identity, WithoutALauncherItIsAProcessAlone) {
  const auto me = identity({});
  EXPECT_EQ(me.launcher, "none");
  EXPECT_TRUE(me.alone());
  EXPECT_TRUE(me.is_chief());
  EXPECT_EQ(me.count("worker"), 1);
}

TEST(Identity, FromMustersOwnVariables) {
  const Environment own{{"MUSTER_TASK", "/job:ps/task:0"},
                        {"MUSTER_CLUSTER", "ps=h1:1;worker=h2:1,h3:1"},
                        {"MUSTER_COORDINATOR", "h0:5"},
                        {"MUSTER_JOB_ID", "j"}};
  const auto me = identity(own);
  EXPECT_EQ(me.task.to_string(), "/job:ps/task:0");
  EXPECT_TRUE(me.is_server());
  EXPECT_EQ(me.count("worker"), 2);
  EXPECT_EQ(me.coordinator, (std::vector<Address>{{"h0", 5}}));
  EXPECT_FALSE(me.hosts_coordinator);
  EXPECT_EQ(me.job_id, "j");
}

TEST(Identity, WithoutALauncherTheChiefHostsTheCoordinatorAtItsAddress) {
  const auto chief =
      identity({{"MUSTER_TASK", "/job:worker/task:0"}, {"MUSTER_CLUSTER", "worker=h2:7,h3:1"}});
  EXPECT_TRUE(chief.hosts_coordinator);
  EXPECT_EQ(chief.coordinator, (std::vector<Address>{{"h2", 7}}));
  EXPECT_FALSE(identity({{"MUSTER_TASK", "/job:worker/task:1"}, {"MUSTER_CLUSTER", "worker=h2:7,h3:1"}})
                   .hosts_coordinator);
}

TEST(Identity, TaskAndClusterGoTogether) {
  EXPECT_THAT(message_of({{"MUSTER_TASK", "/job:worker/task:0"}}), HasSubstr("only --task is given"));
  EXPECT_THAT(message_of({{"MUSTER_CLUSTER", "worker=h1:1"}}), HasSubstr("only --cluster is given"));
  EXPECT_THAT(message_of({{"MUSTER_TASK", "/job:worker/task:5"}, {"MUSTER_CLUSTER", "worker=h1:1"}}),
              HasSubstr("no task /job:worker/task:5"));
  EXPECT_THAT(message_of({{"MUSTER_COORDINATOR", "h1:1"}}), HasSubstr("nothing says which task this is"));
}

TEST(Identity, FromTfConfig) {
  const auto me = identity({{"TF_CONFIG", R"({"cluster": {"ps": ["h1:1"], "worker": ["h2:1", "h3:1"]},
                                              "task": {"type": "worker", "index": 1}})"}});
  EXPECT_EQ(me.launcher, "TF_CONFIG");
  EXPECT_EQ(me.task, TaskName::of("worker", 1));
  EXPECT_EQ(me.coordinator, (std::vector<Address>{{"h2", 1}}));
  EXPECT_FALSE(me.hosts_coordinator);
}

TEST(Identity, TfConfigsChiefIsWorkerZeroAndTheWorkersFollow) {
  const std::string cluster =
      R"({"cluster": {"chief": ["h0:1"], "worker": ["h1:1", "h2:1"], "ps": ["h3:1"]}, "task": )";
  const auto chief = identity({{"TF_CONFIG", cluster + R"({"type": "chief", "index": 0}})"}});
  EXPECT_TRUE(chief.is_chief());
  EXPECT_TRUE(chief.hosts_coordinator);
  EXPECT_EQ(chief.count("worker"), 3);
  const auto worker = identity({{"TF_CONFIG", cluster + R"({"type": "worker", "index": "1"}})"}});
  EXPECT_EQ(worker.task, TaskName::of("worker", 2));
  EXPECT_EQ(worker.cluster.address(worker.task).host, "h2");
  const auto evaluator = identity({{"TF_CONFIG", cluster + R"({"type": "evaluator", "index": 0}})"}});
  EXPECT_TRUE(evaluator.is_observer());
  EXPECT_EQ(evaluator.count("evaluator"), 0);
  EXPECT_EQ(evaluator.coordinator, (std::vector<Address>{{"h0", 1}}));
}

TEST(Identity, TfConfigWithoutAClusterIsAProcessAlone) {
  EXPECT_TRUE(identity({{"TF_CONFIG", R"({"task": {"type": "worker", "index": 0}})"}}).alone());
}

TEST(Identity, BadTfConfigsAreNamed) {
  EXPECT_THAT(message_of({{"TF_CONFIG", "{"}}), HasSubstr("TF_CONFIG is not a JSON object"));
  EXPECT_THAT(message_of({{"TF_CONFIG", R"({"cluster": {"worker": ["h1:1"]}})"}}), HasSubstr("no task"));
  EXPECT_THAT(message_of({{"TF_CONFIG",
                           R"({"cluster": {"worker": ["h1:1"]}, "task": {"type": "worker", "index": 3}})"}}),
              HasSubstr("no task /job:worker/task:3"));
  EXPECT_THAT(
      message_of({{"TF_CONFIG", R"({"cluster": {"ps": ["h1:1"]}, "task": {"type": "ps", "index": 0}})"}}),
      HasSubstr("no chief"));
}

TEST(Identity, FromTorchrun) {
  const auto me = identity(kTorchrun);
  EXPECT_EQ(me.launcher, "torchrun");
  EXPECT_EQ(me.task, TaskName::of("worker", 1));
  EXPECT_EQ(me.count("worker"), 4);
  ASSERT_FALSE(me.coordinator.empty());
  EXPECT_EQ(me.coordinator.front().host, "h1");
  for (const auto& address : me.coordinator) EXPECT_NE(address.port, 29500);
  EXPECT_THAT(message_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}}), HasSubstr("MASTER_ADDR"));
  EXPECT_THAT(message_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), HasSubstr("rank 2 of only 2"));
  EXPECT_THAT(message_of({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK=x"));
}

// As in a shell in which somebody tried something.
TEST(Identity, ARankWithoutTheNumberOfRanksIsAloneWithAWarning) {
  std::string log;
  set_log_sink([&](std::string_view line) { log += line; });
  EXPECT_EQ(identity(Environment{{"RANK", "1"}}).launcher, "none");
  EXPECT_THAT(log, HasSubstr("only RANK is set: this worker is alone"));
  EXPECT_EQ(identity(Environment{{"WORLD_SIZE", "2"}}).launcher, "none");
  EXPECT_THAT(log, HasSubstr("only WORLD_SIZE is set"));
  set_log_sink(nullptr);
}

TEST(Identity, FromOpenMpiOnOneHost) {
  const auto me = identity(kOpenMpi);
  EXPECT_EQ(me.launcher, "Open MPI");
  EXPECT_TRUE(me.hosts_coordinator);
  EXPECT_EQ(me.coordinator.front().host, "127.0.0.1");
  EXPECT_EQ(me.job_id, "openmpi-77");
  const auto other = identity(kOpenMpi + std::map<std::string, std::string>{{"PMIX_NAMESPACE", "78"}});
  EXPECT_NE(me.coordinator, other.coordinator);
}

TEST(Identity, MpiOverSeveralHostsNeedsToBeToldWhereRankZeroIs) {
  const auto several = kOpenMpi + std::map<std::string, std::string>{{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  EXPECT_THAT(message_of(several), HasSubstr("-x MUSTER_COORDINATOR="));
  const auto told = identity(several + std::map<std::string, std::string>{{"MUSTER_COORDINATOR", "h1:99"}});
  EXPECT_EQ(told.coordinator, (std::vector<Address>{{"h1", 99}}));
  EXPECT_TRUE(told.hosts_coordinator);
}

TEST(Identity, FromPmi) {
  const auto me = identity({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(me.launcher, "PMI");
  EXPECT_EQ(me.task, TaskName::of("worker", 1));
  EXPECT_EQ(me.coordinator.front().host, "127.0.0.1");
  EXPECT_THAT(message_of({{"PMIX_RANK", "1"}}), HasSubstr("number of ranks"));
}

TEST(Identity, FromSlurm) {
  const auto me = identity(kSlurm);
  EXPECT_EQ(me.launcher, "Slurm");
  EXPECT_EQ(me.task, TaskName::of("worker", 4));
  EXPECT_EQ(me.coordinator.front().host, "gpu01");
  EXPECT_EQ(me.job_id, "slurm-1234.3");
  EXPECT_THAT(message_of(kSlurm + std::map<std::string, std::string>{{"SLURM_STEP_TASKS_PER_NODE", "2"}}),
              HasSubstr("does not fit"));
}

TEST(Identity, PmixUnderSlurmTakesTheSizeAndTheAddressFromSlurm) {
  const auto me = identity(kSlurm + std::map<std::string, std::string>{{"PMIX_RANK", "4"}});
  EXPECT_EQ(me.task, TaskName::of("worker", 4));
  EXPECT_EQ(me.coordinator.front().host, "gpu01");
}

TEST(Identity, ABatchScriptIsNotATask) {
  Environment batch = kSlurm;
  batch.unset("SLURM_STEP_ID");
  EXPECT_TRUE(identity(batch).alone());
}

TEST(Identity, MpirunInsideSlurmIsNotAConflict) {
  const auto me =
      identity(kOpenMpi + std::map<std::string, std::string>{
                              {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "8"}});
  EXPECT_EQ(me.launcher, "Open MPI");
}

TEST(Identity, TwoThatDisagreeAreBothShown) {
  EXPECT_THAT(message_of(kTorchrun + std::map<std::string, std::string>{{"OMPI_COMM_WORLD_RANK", "0"},
                                                                        {"OMPI_COMM_WORLD_SIZE", "4"},
                                                                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}),
              AllOf(HasSubstr("disagree"), HasSubstr("torchrun says /job:worker/task:1 of 4 worker"),
                    HasSubstr("Open MPI says /job:worker/task:0 of 4 worker")));
  EXPECT_THAT(
      message_of(kTorchrun +
                 std::map<std::string, std::string>{{"TF_CONFIG", R"({"cluster": {"worker": ["h1:1", "h2:1"]},
                                                           "task": {"type": "worker", "index": 1}})"}}),
      AllOf(HasSubstr("TF_CONFIG says /job:worker/task:1 of 2 worker"), HasSubstr("of 4 worker")));
}

TEST(Identity, SeveralThatAgreeAreFine) {
  const auto me = identity(
      kTorchrun + std::map<std::string, std::string>{{"MUSTER_TASK", "/job:worker/task:1"},
                                                     {"MUSTER_CLUSTER", "ps=p:1;worker=a:1,b:1,c:1,d:1"},
                                                     {"MUSTER_COORDINATOR", "h0:5"}});
  EXPECT_EQ(me.launcher, "Muster");
  EXPECT_EQ(me.coordinator, (std::vector<Address>{{"h0", 5}}));
}

}  // namespace
}  // namespace muster::detail
