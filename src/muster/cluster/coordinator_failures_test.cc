// A job that goes on when a task fails: FailurePolicy::kGoOn, sentence by sentence.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/log.h"
#include "muster/cluster/coordinator_state_test.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class GoOnTest : public CoordinatorStateFixture {
 protected:
  GoOnTest() {
    cluster = {{"ps", {0}}, {"worker", {0, 1, 2}}};
    set_log_sink([this](std::string_view line) { log += line; });
  }
  ~GoOnTest() override { set_log_sink(nullptr); }

  void assemble(bool restarts = false) {
    make(cluster, FailurePolicy::kGoOn, restarts);
    server = enter("ps", 0);
    for (int i = 0; i < 3; ++i) workers.push_back(enter("worker", i));
    ASSERT_TRUE(assembled(server));
  }

  void exited(int worker, const std::string& how = "was killed by signal 9 (SIGKILL)") {
    state->exited(TaskName::of("worker", worker), how, now);
  }

  bool told_finished(uint64_t id) { return find(id, proto::FromCoordinator::kFinished) != nullptr; }

  std::vector<std::string> failures_told_to(uint64_t id) {
    std::vector<std::string> names;
    for (const auto& message : sent[id]) {
      if (!message.has_task_failed()) continue;
      const auto task = from_proto(message.task_failed().task());
      names.push_back(fmt::format("{} incarnation {}", task.task.short_name(), task.incarnation));
    }
    return names;
  }

  std::string log;
  uint64_t server = 0;
  std::vector<uint64_t> workers;
};

TEST_F(GoOnTest, AWorkerWhoseConnectionClosesIsSaidAndDoesNotAbort) {
  assemble();
  state->disconnected(workers[1], now);
  EXPECT_FALSE(state->aborted());
  EXPECT_EQ(abort_reason(workers[0]), "");
  EXPECT_THAT(log, HasSubstr("worker/1 (host host-a, pid 103) failed: its connection closed; "
                             "the job goes on without it"));
}

TEST_F(GoOnTest, AWorkerWhoseProcessEndsHasFailedInTheWordsOfItsLauncher) {
  assemble();
  exited(1);
  EXPECT_FALSE(state->aborted());
  EXPECT_THAT(log, HasSubstr("worker/1 (host host-a, pid 103) failed: was killed by signal 9 (SIGKILL); "
                             "the job goes on without it"));
  state->disconnected(workers[1], now);
  EXPECT_THAT(failures_told_to(workers[0]), ElementsAre("worker/1 incarnation 0")) << "once, not twice";
}

TEST_F(GoOnTest, AProcessThatEndsAfterItHasLeftIsNoFailure) {
  assemble();
  leave(workers[1]);
  exited(1, "exited with code 1");
  EXPECT_THAT(failures_told_to(workers[0]), IsEmpty());
  EXPECT_THAT(log, Not(HasSubstr("failed")));
}

TEST_F(GoOnTest, ASilentWorkerHasFailedAndIsToldSoWhenItSpeaksAgain) {
  assemble();
  for (int i = 0; i < 4; ++i) {
    now += 3s;
    for (const auto id : {server, workers[0], workers[2]}) heartbeat(id);
    state->tick(now);
  }
  EXPECT_FALSE(state->aborted());
  EXPECT_THAT(log, HasSubstr("failed: it was silent for longer than 10.0 s; the job goes on without it"));
  EXPECT_THAT(refusal(workers[1]), HasSubstr("the coordinator gave up on this task: it was silent"));
  EXPECT_TRUE(closed.contains(workers[1]));
  sent.clear();
  barrier(workers[1], "too late");
  EXPECT_TRUE(sent[workers[1]].empty());
}

TEST_F(GoOnTest, ABarrierThatWaitsForAFailedWorkerIsSettledWithoutIt) {
  assemble();
  barrier(workers[0], "x", 60s, "worker");
  barrier(workers[2], "x", 60s, "worker");
  EXPECT_EQ(reply(workers[0]), nullptr);
  state->disconnected(workers[1], now);
  ASSERT_NE(reply(workers[0]), nullptr);
  EXPECT_EQ(reply(workers[0])->code(), proto::Reply::OK);
  EXPECT_EQ(reply(workers[0])->values_size(), 2) << "a gather has the values of the living";
  EXPECT_EQ(reply(workers[2])->code(), proto::Reply::OK);
}

TEST_F(GoOnTest, ALaterBarrierDoesNotCountFailedWorkersNorWhatTheyBrought) {
  assemble();
  barrier(workers[1], "x", 60s, "worker");
  state->disconnected(workers[1], now);
  EXPECT_THAT(log, HasSubstr("failed while it waited in barrier 'x': its connection closed"));
  barrier(workers[0], "x", 5s, "worker");
  EXPECT_EQ(reply(workers[0]), nullptr);
  now += 5s;
  state->tick(now);
  EXPECT_THAT(reply(workers[0])->message(), AllOf(HasSubstr("worker/2"), Not(HasSubstr("worker/1"))));
  sent.clear();
  barrier(workers[0], "x", 60s, "worker");
  barrier(workers[2], "x", 60s, "worker");
  EXPECT_EQ(reply(workers[0])->values_size(), 2);
}

TEST_F(GoOnTest, ABarrierDoesNotWaitForWorkersThatHaveLeft) {
  assemble();
  barrier(workers[1], "end", 60s, "worker");
  leave(workers[0]);
  EXPECT_EQ(reply(workers[1]), nullptr);
  state->disconnected(workers[2], now);
  ASSERT_NE(reply(workers[1]), nullptr);
  EXPECT_EQ(reply(workers[1])->code(), proto::Reply::OK);
}

TEST_F(GoOnTest, ANewIncarnationMayEnterAtAnyTimeAndCountsAgain) {
  assemble();
  state->disconnected(workers[1], now);
  now += 1h;
  for (const auto id : {server, workers[0], workers[2]}) heartbeat(id);
  const auto again = enter("worker", 1, {.address = "10.0.0.1:9", .incarnation = 1});
  EXPECT_EQ(refusal(again), "");
  barrier(workers[0], "x", 60s, "worker");
  barrier(workers[2], "x", 60s, "worker");
  EXPECT_EQ(reply(workers[0]), nullptr);
  barrier(again, "x", 60s, "worker");
  EXPECT_EQ(reply(workers[0])->values_size(), 3);
  leave(workers[0]);
  leave(workers[2]);
  EXPECT_FALSE(state->finished());
  leave(again);
  EXPECT_TRUE(state->finished());
}

TEST_F(GoOnTest, ANewIncarnationGetsTheCurrentTasksAtOnceAndTheOthersItsAddress) {
  assemble();
  state->disconnected(workers[1], now);
  state->disconnected(workers[2], now);
  const auto again = enter("worker", 1, {.address = "10.0.0.1:9", .incarnation = 1});
  for (const auto id : {again, server}) {
    ASSERT_TRUE(assembled(id));
    const auto tasks = find(id, proto::FromCoordinator::kAssembled)->assembled();
    ASSERT_EQ(tasks.tasks_size(), 4);
    EXPECT_EQ(tasks.tasks(2).address(), "10.0.0.1:9");
    EXPECT_EQ(tasks.tasks(2).incarnation(), 1);
    ASSERT_EQ(tasks.failed_size(), 1);
    EXPECT_EQ(from_proto(tasks.failed(0)), TaskName::of("worker", 2));
  }
}

TEST_F(GoOnTest, EveryOtherTaskIsToldOfAFailure) {
  assemble();
  state->disconnected(workers[1], now);
  for (const auto id : {server, workers[0], workers[2]}) {
    EXPECT_THAT(failures_told_to(id), ElementsAre("worker/1 incarnation 0"));
  }
}

TEST_F(GoOnTest, AnIncarnationWhoseDeathWasNotNoticedIsToldAsFailedWhenTheNextEnters) {
  assemble();
  const auto again = enter("worker", 1, {.incarnation = 1});
  EXPECT_THAT(failures_told_to(server), ElementsAre("worker/1 incarnation 0"));
  EXPECT_THAT(failures_told_to(again), IsEmpty());
  state->disconnected(workers[1], now);
  EXPECT_THAT(failures_told_to(server), ElementsAre("worker/1 incarnation 0"));
}

TEST_F(GoOnTest, TheFailureOfTheLastWorkerAborts) {
  assemble();
  state->disconnected(workers[1], now);
  state->disconnected(workers[0], now);
  EXPECT_FALSE(state->aborted());
  exited(2, "exited with code 3");
  ASSERT_TRUE(state->aborted());
  EXPECT_THAT(abort_reason(server), HasSubstr("worker/2 (host host-a, pid 104) failed: exited with code 3; "
                                              "it was the last worker"));
  EXPECT_EQ(state->aborted()->by, TaskName::of("worker", 2));
}

TEST_F(GoOnTest, AnAbortThatATaskSaysEndsTheJob) {
  assemble();
  proto::FromMember message;
  message.mutable_abort()->set_reason("the loss is not a number");
  state->received(workers[1], message, now);
  EXPECT_THAT(abort_reason(workers[0]),
              HasSubstr("worker/1 (host host-a, pid 103): the loss is not a number"));
}

TEST_F(GoOnTest, AFailureBeforeTheJobIsAssembledAborts) {
  make(cluster, FailurePolicy::kGoOn);
  const auto a = enter("worker", 0);
  const auto b = enter("worker", 1);
  state->disconnected(b, now);
  EXPECT_THAT(abort_reason(a), HasSubstr("worker/1 (host host-a, pid 102) failed: its connection closed"));
}

TEST_F(GoOnTest, AProcessThatEndsBeforeItEntersAborts) {
  make(cluster, FailurePolicy::kGoOn);
  const auto a = enter("worker", 0);
  exited(1, "exited with code 5");
  EXPECT_THAT(abort_reason(a), HasSubstr("worker/1 exited with code 5 before it entered the job"));
}

TEST_F(GoOnTest, AFailedServerIsWaitedForAndDoesNotAbort) {
  assemble();
  for (const auto id : workers) barrier(id, "all");
  state->disconnected(server, now);
  EXPECT_FALSE(state->aborted());
  EXPECT_THAT(
      log, HasSubstr("ps/0 (host host-a, pid 101) failed: its connection closed; the workers wait for it"));
  EXPECT_THAT(failures_told_to(workers[0]), ElementsAre("ps/0 incarnation 0"));
  EXPECT_EQ(reply(workers[0]), nullptr) << "its state is needed: a barrier waits for it";
  const auto again = enter("ps", 0, {.incarnation = 1});
  barrier(again, "all");
  EXPECT_EQ(reply(workers[0])->code(), proto::Reply::OK);
}

TEST_F(GoOnTest, TheJobHasFinishedWhenAllLivingWorkersHaveLeft) {
  assemble();
  state->disconnected(workers[1], now);
  leave(workers[0]);
  EXPECT_FALSE(told_finished(server));
  leave(workers[2]);
  EXPECT_TRUE(told_finished(server));
  EXPECT_FALSE(state->aborted());
}

TEST_F(GoOnTest, TheFailureOfTheLastWorkerThatHadNotLeftFinishesTheJob) {
  assemble();
  leave(workers[0]);
  leave(workers[2]);
  EXPECT_FALSE(told_finished(server));
  state->disconnected(workers[1], now);
  EXPECT_TRUE(told_finished(server));
  EXPECT_FALSE(state->aborted());
}

TEST_F(GoOnTest, AServerThatEntersAgainAfterTheEndIsToldOfIt) {
  assemble();
  state->disconnected(server, now);
  for (const auto id : workers) leave(id);
  EXPECT_TRUE(told_finished(enter("ps", 0, {.incarnation = 1})));
}

TEST_F(GoOnTest, WithRestartsADeadWorkerMayComeBackUntilItsLauncherSaysOtherwise) {
  assemble(/*restarts=*/true);
  leave(workers[0]);
  for (const int i : {1, 2}) state->disconnected(workers[static_cast<size_t>(i)], now);
  EXPECT_FALSE(state->aborted());
  EXPECT_FALSE(state->finished());
  leave(enter("worker", 1, {.incarnation = 1}));
  EXPECT_FALSE(state->finished());
  exited(2);
  EXPECT_TRUE(state->finished());
}

TEST_F(GoOnTest, WithRestartsTheLastWorkerMayDieAndComeBack) {
  cluster = {{"worker", {0}}};
  make(cluster, FailurePolicy::kGoOn, /*restarts=*/true);
  state->disconnected(enter("worker", 0), now);
  EXPECT_FALSE(state->aborted());
  const auto again = enter("worker", 0, {.incarnation = 1});
  EXPECT_TRUE(assembled(again));
  state->disconnected(again, now);
  EXPECT_FALSE(state->aborted());
  state->exited(TaskName::of("worker", 0), "exited with code 3", now);
  ASSERT_TRUE(state->aborted());
  EXPECT_THAT(state->aborted()->reason, HasSubstr("failed: exited with code 3; it was the last worker"));
}

TEST_F(GoOnTest, WithRestartsAFailureBeforeTheJobIsAssembledIsWaitedFor) {
  make(cluster, FailurePolicy::kGoOn, /*restarts=*/true);
  enter("ps", 0);
  const auto a = enter("worker", 0);
  enter("worker", 1);
  state->disconnected(a, now);
  EXPECT_FALSE(state->aborted());
  enter("worker", 0, {.incarnation = 1});
  EXPECT_TRUE(assembled(enter("worker", 2)));
}

TEST_F(GoOnTest, OnlyLaunchersMaySayThatATaskHasEnded) {
  assemble();
  proto::FromMember message;
  message.mutable_request()->set_id(1);
  *message.mutable_request()->mutable_exited()->mutable_task() = to_proto(TaskName::of("worker", 1));
  message.mutable_request()->mutable_exited()->set_how("was killed");
  state->received(workers[0], message, now);
  EXPECT_EQ(reply(workers[0])->code(), proto::Reply::INVALID_ARGUMENT);
  EXPECT_THAT(failures_told_to(workers[0]), IsEmpty());
  const auto launcher = enter("launcher", 0, {.observer = true});
  state->received(launcher, message, now);
  EXPECT_EQ(reply(launcher)->code(), proto::Reply::OK);
  EXPECT_THAT(failures_told_to(workers[0]), ElementsAre("worker/1 incarnation 0"));
}

TEST_F(GoOnTest, AKeyThatANewIncarnationPutsAgainIsWhatOthersGet) {
  assemble();
  put(server, "address/ps/0", "10.0.0.1:1");
  state->disconnected(server, now);
  put(enter("ps", 0, {.incarnation = 1}), "address/ps/0", "10.0.0.1:2");
  get(workers[0], "address/ps/0");
  EXPECT_EQ(reply(workers[0])->value(), "10.0.0.1:2");
}

TEST_F(GoOnTest, WhenTheyWaitForItOthersAreToldOfAFailureToo) {
  make(cluster, FailurePolicy::kWait);
  const auto a = enter("worker", 0);
  state->disconnected(enter("worker", 1), now);
  EXPECT_THAT(failures_told_to(a), ElementsAre("worker/1 incarnation 0"));
}

}  // namespace
}  // namespace muster::detail
