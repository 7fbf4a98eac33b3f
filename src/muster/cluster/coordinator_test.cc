// The coordinator and its members over real sockets, as threads of one process. What a member promises
// alone is in member_test.cc; tests/ has the same with processes.

#include "muster/cluster/coordinator.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <random>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/cluster/coordinator_test.h"
#include "muster/testing/thread_cluster.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ThreadCluster;

using CoordinatorTest = CoordinatorFixture;

TEST_F(CoordinatorTest, TasksEnterExchangeValuesAndLeave) {
  start(workers(4));
  const auto errors = ThreadCluster(4, 60s).run([&](int rank) {
    Member member(options("worker", rank), soon());
    const auto tasks = member.wait_assembled(soon());
    ASSERT_EQ(tasks.size(), 4u);
    EXPECT_EQ(tasks[2].task, TaskName::of("worker", 2));
    EXPECT_EQ(tasks[2].address, "127.0.0.1:1002");
    member.put("from/" + std::to_string(rank), std::string(1000, static_cast<char>('a' + rank)), soon());
    for (int peer = 0; peer < 4; ++peer) {
      EXPECT_EQ(member.get("from/" + std::to_string(peer), soon()),
                std::string(1000, static_cast<char>('a' + peer)));
    }
    for (int round = 0; round < 20; ++round) member.barrier("round", soon());
    member.leave(soon());
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_TRUE(coordinator->wait_idle(soon()));
  EXPECT_FALSE(coordinator->aborted());
}

TEST_F(CoordinatorTest, ABarrierHoldsEveryoneUntilTheLastHasCome) {
  start(workers(3));
  std::atomic<int> arrived = 0;
  const auto errors = ThreadCluster(3, 60s).run([&](int rank) {
    Member member(options("worker", rank), soon());
    for (int round = 1; round <= 10; ++round) {
      ++arrived;
      member.barrier("round", soon());
      EXPECT_GE(arrived, 3 * round);
      member.barrier("next", soon());
    }
    member.leave(soon());
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_F(CoordinatorTest, AGatherGivesEveryoneWhatEachTaskBrought) {
  start(workers(3));
  const auto errors = ThreadCluster(3, 60s).run([&](int rank) {
    Member member(options("worker", rank), soon());
    for (int round = 0; round < 3; ++round) {
      const auto values = member.gather("values", fmt::format("{} of {}", round, rank), soon());
      EXPECT_THAT(values, ElementsAre(fmt::format("{} of 0", round), fmt::format("{} of 1", round),
                                      fmt::format("{} of 2", round)));
    }
    member.leave(soon());
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_F(CoordinatorTest, AMemberThatVanishesIsNamedToTheOthers) {
  start(workers(2));
  const auto errors = ThreadCluster(2, 60s).run([&](int rank) {
    Member member(options("worker", rank), soon());
    member.wait_assembled(soon());
    if (rank == 1) return;  // destroyed without leaving
    member.barrier("never", Deadline::never());
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("worker/1 (host"), HasSubstr("failed")));
}

TEST_F(CoordinatorTest, ATakenPortIsPassedOver) {
  start(workers(1));
  Coordinator second({.listen = {coordinator->address(), {"127.0.0.1", 0}},
                      .job_id = "b",
                      .secret = "x",
                      .tasks = workers(1)});
  EXPECT_NE(second.address(), coordinator->address());
  EXPECT_THROW(
      Coordinator({.listen = {coordinator->address()}, .job_id = "c", .secret = "x", .tasks = workers(1)}),
      SystemError);
}

TEST_F(CoordinatorTest, ServersWaitForTheWorkers) {
  TaskSet tasks = workers(2);
  tasks["ps"] = {0};
  start(tasks);
  std::atomic<int> done = 0;
  const auto errors = ThreadCluster(3, 60s).run([&](int rank) {
    Member member(rank == 2 ? options("ps", 0) : options("worker", rank), soon());
    member.wait_assembled(soon());
    if (rank == 2) {
      member.wait_finished(soon());
      EXPECT_EQ(done, 2);
    } else {
      ++done;
    }
    member.leave(soon());
  });
  EXPECT_THAT(errors, Each(""));
}

// Keeps what on_task_failed says, for a test that waits for it.
struct FailedTasks {
  void add(const TaskInfo& task) {
    const std::lock_guard lock(mutex);
    names.push_back(task.task.short_name());
    changed.notify_all();
  }
  std::vector<std::string> wait_for(size_t count) {
    std::unique_lock lock(mutex);
    changed.wait_until(lock, Deadline::after(30s).time_point(), [&] { return names.size() >= count; });
    return names;
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> names;
};

TEST_F(CoordinatorTest, AJobGoesOnWithoutAWorkerThatVanishesAndOthersAreTold) {
  TaskSet tasks = workers(3);
  tasks["ps"] = {0};
  start(tasks, FailurePolicy::kGoOn);
  const auto errors = ThreadCluster(4, 60s).run([&](int rank) {
    FailedTasks failed;
    auto mine = rank == 3 ? options("ps", 0) : options("worker", rank);
    mine.on_task_failed = [&](const TaskInfo& task) { failed.add(task); };
    Member member(mine, soon());
    member.wait_assembled(soon());
    if (rank == 1) return;  // destroyed without leaving
    EXPECT_THAT(failed.wait_for(1), ElementsAre("worker/1"));
    if (rank == 3) {
      member.wait_finished(soon());
    } else {
      EXPECT_EQ(member.gather("living", "here", soon(), "worker").size(), 2u);
    }
    member.leave(soon());
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_FALSE(coordinator->aborted());
}

TEST_F(CoordinatorTest, ATaskThatEntersAgainIsFoundAtItsNewAddressAndLearnsWhoHasFailed) {
  start(workers(3), FailurePolicy::kGoOn);
  FailedTasks failed;
  auto watching = options("worker", 0);
  watching.on_task_failed = [&](const TaskInfo& task) { failed.add(task); };
  std::vector<std::unique_ptr<Member>> members(3);
  const auto errors = ThreadCluster(3, 60s).run([&](int rank) {
    members[static_cast<size_t>(rank)] =
        std::make_unique<Member>(rank == 0 ? watching : options("worker", rank), soon());
    members[static_cast<size_t>(rank)]->wait_assembled(soon());
  });
  ASSERT_THAT(errors, Each(""));
  const auto one = TaskName::of("worker", 1);
  EXPECT_EQ(members[0]->find(one, soon()).address, "127.0.0.1:1001");
  members[1].reset();
  members[2].reset();
  EXPECT_THAT(failed.wait_for(2), ::testing::UnorderedElementsAre("worker/1", "worker/2"));
  EXPECT_THROW(members[0]->find(one, Deadline::after(10ms)), DeadlineExceeded);
  EXPECT_THROW(members[0]->find(TaskName::of("worker", 3), soon()), InvalidArgument);

  FailedTasks known;
  auto again = options("worker", 1);
  again.incarnation = 1;
  again.address = "127.0.0.1:2001";
  again.on_task_failed = [&](const TaskInfo& task) { known.add(task); };
  auto found = std::async(std::launch::async, [&] { return members[0]->find(one, soon()); });
  members[1] = std::make_unique<Member>(again, soon());
  EXPECT_EQ(members[1]->wait_assembled(soon())[1].address, "127.0.0.1:2001");
  EXPECT_EQ(found.get().address, "127.0.0.1:2001");
  EXPECT_THAT(known.wait_for(1), ElementsAre("worker/2"));
  members[0]->leave(soon());
  members[1]->leave(soon());
  EXPECT_FALSE(coordinator->aborted());
}

TEST_F(CoordinatorTest, ALauncherLearnsWhetherTheEndOfATaskEndsTheJob) {
  start(workers(2), FailurePolicy::kGoOn);
  auto mine = options("launcher", 0);
  mine.observer = true;
  Member launcher(mine, soon());
  Member first(options("worker", 0), soon());
  Member second(options("worker", 1), soon());
  second.wait_assembled(soon());
  launcher.exited(TaskName::of("worker", 0), "exited with code 3", soon());
  EXPECT_THROW(first.get("never", soon()), PeerLost);
  EXPECT_THROW(launcher.exited(TaskName::of("worker", 1), "exited with code 4", soon()), Aborted);
  EXPECT_THAT(coordinator->aborted()->reason, HasSubstr("exited with code 4; it was the last worker"));
}

TEST_F(CoordinatorTest, GarbageAndSilentConnectionsDisturbNobody) {
  start(workers(2));
  std::vector<int> sockets;
  std::mt19937 generator(3);
  for (int i = 0; i < 60; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(coordinator->address().port));
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    std::string garbage(4096, '\0');
    for (char& byte : garbage) byte = static_cast<char>(generator());
    if (i % 3 == 0) (void)!write(fd, garbage.data(), garbage.size());
    if (i % 3 == 1) (void)!write(fd, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
    sockets.push_back(fd);  // a third says nothing at all, and none hangs up
  }
  const auto errors = ThreadCluster(2, 60s).run([&](int rank) {
    Member member(options("worker", rank), soon());
    member.barrier("all", soon());
    member.leave(soon());
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_FALSE(coordinator->aborted());
  for (const int fd : sockets) close(fd);
}

}  // namespace
}  // namespace muster::detail
