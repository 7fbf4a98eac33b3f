#include "muster/launch_spec.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

TEST(LaunchSpec, EveryTaskRunsOnExactlyOneNode) {
  for (int nodes = 1; nodes <= 5; ++nodes) {
    for (int workers = nodes; workers <= 11; ++workers) {
      for (int servers = 0; servers <= 4; ++servers) {
        const LaunchSpec spec = {.workers = workers, .servers = servers, .nodes = nodes};
        std::set<TaskName> seen;
        for (int node = 0; node < nodes; ++node) {
          for (const auto& task : spec.tasks_of_node(node)) EXPECT_TRUE(seen.insert(task).second);
        }
        EXPECT_EQ(seen.size(), static_cast<size_t>(workers + servers));
        EXPECT_TRUE(seen.contains(TaskName::of("worker", workers - 1)));
      }
    }
  }
}

TEST(LaunchSpec, ImpossibleSpecsAreRejected) {
  EXPECT_THROW((LaunchSpec{.workers = 0}.tasks()), InvalidArgument);
  EXPECT_THROW((LaunchSpec{.servers = -1}.tasks()), InvalidArgument);
  EXPECT_THROW((LaunchSpec{.workers = 1, .nodes = 2}.tasks()), InvalidArgument);
}

TEST(LaunchSpec, MoreTasksThanANodeCanTakeAreRejectedWithTheRemedy) {
  EXPECT_NO_THROW((LaunchSpec{.workers = 62, .servers = 2}.check_load(0, 2)));
  EXPECT_NO_THROW((LaunchSpec{.workers = 640, .nodes = 10}.check_load(9, 2)));
  try {
    LaunchSpec{.workers = 2'000'000'000, .servers = 2'000'000'000}.check_load(0, 2);
    ADD_FAILURE();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(),
                ::testing::AllOf(::testing::HasSubstr("with 2 cores, would run 4000000000 tasks"),
                                 ::testing::HasSubstr("add --oversubscribe")));
  }
}

// What a launched task reads back is what the launcher meant, whichever variables it looks at.
TEST(EnvironmentOfTask, EveryReaderFindsTheSameIdentity) {
  const LaunchSpec spec = {.workers = 3, .servers = 1, .nodes = 2};
  const ClusterSpec cluster = ClusterSpec::parse("ps=a:1;worker=a:2,a:3,b:4");
  Config config;
  config.coordinator = "a:9";
  config.job_id = "job";
  config.secret = "secret";
  const Environment outer{
      {"OMPI_COMM_WORLD_RANK", "7"}, {"SLURM_PROCID", "3"}, {"SLURM_STEP_ID", "0"}, {"HOME", "/h"}};
  for (const auto& task : cluster.tasks()) {
    const int node = cluster.address(task).host == "a" ? 0 : 1;
    auto environment = environment_of_task(
        outer, config, {.task = task, .spec = spec, .node = node, .cluster = cluster, .master = {"a", 8}});
    EXPECT_EQ(environment.get("HOME"), "/h");
    Config read;
    read.read_environment(environment);
    const auto identity = find_identity(read);  // throws if they disagree
    EXPECT_EQ(identity.launcher, "Muster");
    EXPECT_EQ(identity.task, task);
    EXPECT_FALSE(identity.hosts_coordinator);
    EXPECT_EQ(read.secret, "secret");

    for (const auto& name : environment.names_with_prefix("MUSTER_")) environment.unset(name);
    Config foreign;
    foreign.read_environment(environment);
    const auto tensorflow = find_identity(foreign);
    EXPECT_EQ(tensorflow.launcher, "TF_CONFIG");
    EXPECT_EQ(tensorflow.task, task);
    EXPECT_EQ(environment.get("RANK").has_value(), task.job == "worker");
    if (task == TaskName::of("worker", 2)) {
      EXPECT_EQ(environment.get("LOCAL_RANK"), "0");
      EXPECT_EQ(environment.get("LOCAL_WORLD_SIZE"), "1");
      EXPECT_EQ(environment.get("WORLD_SIZE"), "3");
      EXPECT_EQ(environment.get("MASTER_ADDR"), "a");
    }
  }
}

}  // namespace
}  // namespace muster::detail
