#include "muster/train/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/testing/thread_cluster.h"

namespace muster {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;

TEST(Job, AProcessAloneIsTheChiefAndNeedsNoNetwork) {
  Job job(Config{});
  EXPECT_TRUE(job.is_chief());
  EXPECT_FALSE(job.is_server());
  EXPECT_EQ(job.workers(), 1);
  EXPECT_EQ(job.tasks().size(), 1u);
  job.barrier("alone");
  job.put("k", "v");
  EXPECT_EQ(job.get("k"), "v");
  EXPECT_THROW(job.get("never"), DeadlineExceeded);
  job.finish();
}

// As several tasks of one process, the way the tasks of a TF_CONFIG cluster meet: the chief hosts the
// coordinator.
TEST(Job, TasksOfAClusterMeetAtTheChief) {
  const ReservedPort chief("127.0.0.1");
  const ReservedPort other("127.0.0.1");
  const ReservedPort server("127.0.0.1");
  const auto errors = testing::ThreadCluster(3, 60s).run([&](int rank) {
    Config config;
    config.cluster = fmt::format("worker=127.0.0.1:{},127.0.0.1:{};ps=127.0.0.1:{}", chief.port(),
                                 other.port(), server.port());
    config.task = rank == 2 ? "/job:ps/task:0" : fmt::format("/job:worker/task:{}", rank);
    config.join_timeout = 30s;
    Job job(config);
    EXPECT_EQ(job.tasks().size(), 3u);
    EXPECT_EQ(job.is_server(), rank == 2);
    if (job.is_chief()) job.put("seed", "42");
    EXPECT_EQ(job.get("seed", 30s), "42");
    job.barrier("workers", "", 30s);
    if (job.is_server()) job.wait_for_workers();
    job.finish();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Job, AMissingTaskIsADeadline) {
  const ReservedPort chief("127.0.0.1");
  Config config;
  config.cluster = fmt::format("worker=127.0.0.1:{},127.0.0.1:1", chief.port());
  config.task = "/job:worker/task:0";
  config.join_timeout = 200ms;
  EXPECT_THROW(Job{config}, DeadlineExceeded);
}

}  // namespace
}  // namespace muster
