#include "muster/job.h"

#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/config.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/collective/operation.h"
#include "muster/communicator.h"
#include "muster/job/job_context.h"
#include "muster/net/reserved_port.h"
#include "muster/testing/thread_cluster.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::HasSubstr;

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
  constexpr auto kLong = 90s;  // 40 MiB take their time under a sanitizer, beside others that compute
  const ReservedPort chief("127.0.0.1");
  const ReservedPort other("127.0.0.1");
  const ReservedPort server("127.0.0.1");
  const auto errors = testing::ThreadCluster(3, 110s).run([&](int rank) {
    Config config;
    config.cluster = fmt::format("worker=127.0.0.1:{},127.0.0.1:{};ps=127.0.0.1:{}", chief.port(),
                                 other.port(), server.port());
    config.task = rank == 2 ? "/job:ps/task:0" : fmt::format("/job:worker/task:{}", rank);
    config.strategy = "none";
    config.join_timeout = kLong;
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
    EXPECT_EQ(job.get("seed", kLong), "42");
    const std::string text(size_t{40} << 20, 'x');  // more than the coordinator takes at once
    if (job.is_chief()) job.context().put_long("long", text + "end");
    if (job.is_server()) {
      EXPECT_TRUE(job.context().get_long("long", kLong) == text + "end");
    }
    job.barrier("workers", kLong);
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
    EXPECT_THAT(error.what(), HasSubstr("within 5.0 s (--join-timeout); not there yet: "
                                        "/job:worker/task:1"));
  }
}

// Two workers without a launcher.
class TwoWorkers {
 public:
  Config config_of(int rank) const {
    Config config;
    config.cluster = fmt::format("worker=127.0.0.1:{},127.0.0.1:{}", chief_.port(), other_.port());
    config.task = fmt::format("/job:worker/task:{}", rank);
    return config;
  }

  // Runs `body` on both, each in a job to its end; gives what each threw.
  std::vector<std::string> run(const std::function<void(Job&)>& body) const {
    return testing::ThreadCluster(2, 60s).run([&](int rank) {
      Config config = config_of(rank);
      config.stall_warning = 1s;
      Job job(config);
      try {
        body(job);
        job.context().finish();
      } catch (const std::exception& error) {
        job.context().abort(error.what());
        throw;
      }
    });
  }

 private:
  const ReservedPort chief_{"127.0.0.1"};
  const ReservedPort other_{"127.0.0.1"};
};

// A thread that nobody waits for, as a program may forget one, when the body returns or throws.
TEST(Job, ThatEndsEndsTheCallsOfOtherThreads) {
  for (const bool leaves : {true, false}) {
    const TwoWorkers workers;
    std::vector<std::string> log;
    set_log_sink([&](std::string_view line) { log.emplace_back(line); });  // called under the log's lock
    std::vector<std::string> thrown(2);
    std::latch both_wait(2);
    const auto errors = testing::ThreadCluster(2, 60s).run([&](int rank) {
      std::jthread waiting;
      Job job(workers.config_of(rank));
      waiting = std::jthread([&job, &thrown, rank] {
        try {
          job.get("never");
        } catch (const Error& error) {
          thrown[static_cast<size_t>(rank)] = error.what();
        }
      });
      while (job.context().waits().waits().empty()) std::this_thread::sleep_for(1ms);
      both_wait.arrive_and_wait();
      if (leaves) job.context().finish();
    });
    set_log_sink(nullptr);
    EXPECT_THAT(errors, Each(""));
    if (leaves) {
      EXPECT_THAT(thrown, ::testing::ElementsAre("worker/0 has left the job", "worker/1 has left the job"));
      EXPECT_THAT(log, ::testing::Contains(HasSubstr("while another thread of it waits in get of 'never'")));
    } else {
      EXPECT_THAT(thrown, Each(::testing::Ne("")));
    }
  }
}

TEST(Job, NamesOfMustersOwnAreRefused) {
  Job job(Config{});
  EXPECT_THROW(job.put("muster/x", "1"), InvalidArgument);
  EXPECT_THROW(job.get("muster/x"), InvalidArgument);
  EXPECT_THROW(job.barrier("muster/x"), InvalidArgument);
  EXPECT_THROW(job.gather("muster/x", ""), InvalidArgument);
}

// As when they are started by hand.
TEST(Job, WorkersWithDifferentSettingsOfCollectivesAreToldSo) {
  const TwoWorkers workers;
  const auto errors = testing::ThreadCluster(2, 60s).run([&](int rank) {
    Config config = workers.config_of(rank);
    config.algorithm = rank == 0 ? "ring" : "auto";
    Job job(config);
    job.communicator();
  });
  EXPECT_THAT(errors, Each(::testing::AllOf(HasSubstr("worker/0 with --engine native --algorithm ring"),
                                            HasSubstr("worker/1 with --engine native --algorithm auto"))));
}

// The worker that sends is at its end when the other begins to receive.
TEST(Job, WaitsForDroppedOperationsThatOwnTheirBuffers) {
  std::latch has_sent(1);
  const auto errors = TwoWorkers().run([&](Job& job) {
    Communicator& workers = job.communicator();
    constexpr size_t kCount = 100'000;  // more than fits on the way
    if (job.is_chief()) {
      for (const float value : {1.0F, 2.0F}) {
        const auto data = std::make_shared<std::vector<float>>(kCount, value);
        workers.submit({.collective = Collective::kSend,
                        .in = data->data(),
                        .out = data->data(),
                        .count = kCount,
                        .dtype = DType::kFloat32,
                        .peer = 1},
                       data);
      }
      return has_sent.count_down();
    }
    has_sent.wait();
    for (const float expected : {1.0F, 2.0F}) {
      std::vector<float> received(kCount);
      workers.receive(received.data(), kCount, DType::kFloat32, 0);
      EXPECT_THAT(received, Each(expected));
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Job, ADroppedOperationToWhichNobodyComesIsAnError) {
  const auto errors = TwoWorkers().run([&](Job& job) {
    Communicator& workers = job.communicator();
    if (!job.is_chief()) return;
    const auto data = std::make_shared<std::vector<float>>(3);
    workers.submit({.collective = Collective::kAllReduce,
                    .in = data->data(),
                    .out = data->data(),
                    .count = 3,
                    .dtype = DType::kFloat32},
                   data);
  });
  EXPECT_THAT(errors[0], ::testing::AllOf(HasSubstr("all_reduce(float32 x 3"), HasSubstr("worker/1 (host "),
                                          HasSubstr("has left the group")));
}

// Its buffers are gone when the body has returned.
TEST(Job, ADroppedOperationThatOwnsNothingIsSaid) {
  std::string log;
  set_log_sink([&](std::string_view line) { log += line; });  // called under the log's lock
  std::vector<float> received(3);
  const auto errors = TwoWorkers().run([&](Job& job) {
    Communicator& workers = job.communicator();
    if (job.is_chief()) workers.receive_async(received.data(), received.size(), DType::kFloat32, 1);
  });
  set_log_sink(nullptr);
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(log, HasSubstr("not done when the group ends, and dropped: receive(float32 x 3"));
}

}  // namespace
}  // namespace muster::detail
