#include "bench/session/subjects.h"

#include <unistd.h>

#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail::bench::session {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Pair;

const Choice kAll = {
    .names = case_names(), .tasks = {1, 8}, .shapes = {"16x1024"}, .sizes = {67108863}, .nodes = {10999}};

const Settings kSettings = {.peers = {"loop", "grpc", "torch-rpc"},
                            .programs = "/bin",
                            .python = "/usr/bin/python3",
                            .allocator = "/lib/quick.so",
                            .tuning = {{"OMP_NUM_THREADS", "1"}}};

Case find(const std::string& name) {
  for (const auto& each : cases(kAll)) {
    if (each.name == name) return each;
  }
  throw std::out_of_range(name);
}

std::vector<std::string> names(const std::string& name) {
  std::vector<std::string> result;
  for (const auto& subject : subjects(kSettings, find(name))) result.push_back(subject.of.subject);
  return result;
}

SubjectCommand command(const std::string& name, size_t which) {
  return subjects(kSettings, find(name)).at(which);
}

std::string line(const SubjectCommand& subject, size_t process = 0) {
  return fmt::format("{}", fmt::join(subject.processes.at(process), " "));
}

TEST(SessionCases, ComeInTheOrderOfTheTable) {
  std::vector<std::string> all;
  for (const auto& each : cases(kAll)) all.push_back(fmt::format("{} {}", each.name, each.of));
  EXPECT_THAT(all,
              ElementsAre("operators ", "cnn ", "executor 16x1024 control", "executor 16x1024 data", "step 1",
                          "step 8", "transfer 67108864", "graph 10000", "pipeline ", "replicas "));
}

TEST(SessionCases, SayWhatARunCounts) {
  EXPECT_EQ(find("executor").items, 16384);
  EXPECT_EQ(find("graph").items, 10000);
  EXPECT_EQ(find("replicas").items, 64);
  EXPECT_EQ(find("step").items, 0);
}

TEST(SessionSubjects, AreThosePeersThatHaveTheCase) {
  EXPECT_THAT(names("operators"), ElementsAre("muster", "loop"));
  EXPECT_THAT(names("cnn"), ElementsAre("muster", "loop", "loop-kept"));
  EXPECT_THAT(names("executor"), ElementsAre("muster"));
  EXPECT_THAT(names("step"), ElementsAre("muster", "grpc"));
  EXPECT_THAT(names("transfer"), ElementsAre("muster", "grpc", "torch-rpc"));
  EXPECT_THAT(names("graph"), ElementsAre("muster"));
  EXPECT_THAT(names("pipeline"), ElementsAre("zero-bubble", "1f1b", "one-task"));
  EXPECT_THAT(names("replicas"), ElementsAre("muster", "ps-sync"));
}

TEST(SessionSubjects, AllHaveTheSameTuning) {
  for (const auto& name : case_names())
    EXPECT_THAT(subjects(kSettings, find(name)),
                Each(Field(&SubjectCommand::variables, Contains(Pair("OMP_NUM_THREADS", "1")))))
        << name;
}

TEST(SessionSubjects, MusterIsAProgramAloneOrATaskUnderMusterRun) {
  EXPECT_EQ(line(command("operators", 0)), "/bin/muster_bench_session DIR operators -");
  EXPECT_EQ(line(command("executor", 0)), "/bin/muster_bench_session DIR executor 16x1024 control");
  const auto transfer = command("transfer", 0);
  EXPECT_EQ(line(transfer),
            "/bin/muster run --workers 2 --strategy none -- /bin/muster_bench_session DIR transfer 67108864");
  EXPECT_EQ(transfer.workers, 1);
  EXPECT_EQ(transfer.servers, 1);
}

TEST(SessionSubjects, APipelineHasTwoTasksAndIsComparedWithOne) {
  EXPECT_THAT(line(command("pipeline", 1)), HasSubstr("--workers 2 --strategy none"));
  EXPECT_EQ(line(command("pipeline", 2)),
            "/bin/muster run --workers 1 --strategy none -- /bin/muster_bench_session DIR pipeline one-task");
}

TEST(SessionSubjects, ReplicasAndPsSyncTrainTheSameModel) {
  const auto replicas = command("replicas", 0);
  EXPECT_EQ(line(replicas),
            "/bin/muster run --workers 2 --ps 1 --strategy none -- /bin/muster_bench_session DIR replicas c");
  EXPECT_EQ(replicas.workers, 2);
  EXPECT_EQ(replicas.servers, 0);
  EXPECT_EQ(line(command("replicas", 1)),
            "/bin/muster run --workers 2 --strategy ps-sync -- /bin/muster_bench_train DIR --model c "
            "--optimizer sgd --batch 32");
}

TEST(SessionSubjects, EveryTaskOfAPeerIsAProcess) {
  const auto grpc = command("transfer", 1);
  ASSERT_EQ(grpc.processes.size(), 2u);
  EXPECT_EQ(line(grpc, 1), "/bin/peer_session_grpc DIR 1 2 67108864");
  EXPECT_EQ(line(command("step", 1)), "/bin/peer_session_grpc DIR 0 1 0");
  const auto torch_rpc = command("transfer", 2);
  EXPECT_EQ(line(torch_rpc), "/usr/bin/python3 /bin/peer_session_torch_rpc.py DIR 0 2 67108864");
  EXPECT_TRUE(torch_rpc.spins);
  EXPECT_THAT(torch_rpc.variables, Contains(Pair("LD_PRELOAD", "/lib/quick.so")));
}

TEST(SessionSubjects, AnotherBuildIsStartedInTheSameWay) {
  Settings settings = kSettings;
  settings.baseline = "/old";
  const auto commands = subjects(settings, find("pipeline"));
  ASSERT_EQ(commands.size(), 4u);
  EXPECT_EQ(commands[1].of.subject, "baseline");
  EXPECT_EQ(
      line(commands[1]),
      "/old/muster run --workers 2 --strategy none -- /old/muster_bench_session DIR pipeline zero-bubble");
}

TEST(SessionPeers, SayWhatIsMissing) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("session_peers.{}", getpid());
  std::filesystem::create_directories(folder);
  for (const char* name : {"peer_session_loop", "peer_train_loop", "peer_session_torch_rpc.py"})
    std::ofstream(folder / name) << "";
  const auto states = peers({.environment = {}, .programs = folder}, "");
  EXPECT_THAT(choose_from(states, {}), ElementsAre("loop"));
  EXPECT_THAT(states[1].missing, HasSubstr("there is no peer_session_grpc in"));
  EXPECT_THAT(states[2].missing, HasSubstr("no python3 here has torch"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace muster::detail::bench::session
