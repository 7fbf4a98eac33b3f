#include "muster/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/config.h"
#include "muster/base/error.h"
#include "muster/job/job_context.h"
#include "muster/net/reserved_port.h"
#include "muster/testing/thread_cluster.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;

TEST(Job, AProcessAloneIsTheChiefAndNeedsNoNetwork) {
  Job job(Config{});
  EXPECT_TRUE(job.is_chief());
  EXPECT_FALSE(job.is_server());
  EXPECT_EQ(job.size(), 1);
  EXPECT_EQ(job.tasks().size(), 1u);
  job.barrier("alone");
  job.put("k", "v");
  EXPECT_EQ(job.get("k"), "v");
  EXPECT_THROW(job.get("never"), DeadlineExceeded);
  const std::string large((size_t{32} << 20) + 1, 'x');
  EXPECT_THROW(job.put("large", large), InvalidArgument);
  EXPECT_THROW(job.gather("large", large), InvalidArgument);
  job.context().finish();
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
    config.strategy = "none";
    config.join_timeout = 30s;
    Job job(config);
    EXPECT_EQ(job.tasks().size(), 3u);
    EXPECT_EQ(job.is_server(), rank == 2);
    EXPECT_EQ(job.size(), 2);
    EXPECT_EQ(job.servers(), 1);
    EXPECT_EQ(job.index(), rank % 2);
    EXPECT_EQ(job.task().name, rank == 2 ? "ps/0" : fmt::format("worker/{}", rank));
    if (job.is_server()) {
      EXPECT_THROW((void)job.rank(), InvalidArgument);
    } else {
      EXPECT_EQ(job.rank(), rank);
    }
    if (job.is_chief()) job.put("seed", "42");
    EXPECT_EQ(job.get("seed", 30s), "42");
    const std::string text(size_t{40} << 20, 'x');  // more than the coordinator takes at once
    if (job.is_chief()) job.context().put_long("long", text + "end");
    if (job.is_server()) {
      EXPECT_TRUE(job.context().get_long("long", 30s) == text + "end");
    }
    job.barrier("workers", 30s);
    if (job.is_server()) job.wait_for_workers();
    job.context().finish();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Job, AMissingTaskIsADeadline) {
  const ReservedPort chief("127.0.0.1");
  Config config;
  config.cluster = fmt::format("worker=127.0.0.1:{},127.0.0.1:1", chief.port());
  config.task = "/job:worker/task:0";
  config.join_timeout = 5s;
  try {
    const Job job(config);
    ADD_FAILURE() << "it has no second task";
  } catch (const DeadlineExceeded& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("within 5.0 s (--join-timeout); not there yet: "
                                                   "/job:worker/task:1"));
  }
}

}  // namespace
}  // namespace muster::detail
