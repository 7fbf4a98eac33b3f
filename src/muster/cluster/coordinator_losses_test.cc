// A job that goes on when a task is lost: LossPolicy::kGoOn, sentence by sentence.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/log.h"
#include "muster/cluster/coordinator_state_test.h"

namespace muster {
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
    make(cluster, LossPolicy::kGoOn, restarts);
    server = join("ps", 0);
    for (int i = 0; i < 3; ++i) workers.push_back(join("worker", i));
    ASSERT_TRUE(assembled(server));
  }

  void exited(int worker, const std::string& how = "was killed by signal 9 (SIGKILL)") {
    state->exited(TaskName::of("worker", worker), how, now);
  }

  bool told_finished(uint64_t id) { return find(id, proto::FromCoordinator::kFinished) != nullptr; }

  std::vector<std::string> losses_told_to(uint64_t id) {
    std::vector<std::string> names;
    for (const auto& message : sent[id]) {
      if (!message.has_lost()) continue;
      const auto task = from_proto(message.lost().task());
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
  EXPECT_THAT(log, HasSubstr("worker/1 (host host-a, pid 103) is lost: its connection closed; "
                             "the job goes on without it"));
}

TEST_F(GoOnTest, AWorkerWhoseProcessEndsIsLostInTheWordsOfItsLauncher) {
  assemble();
  exited(1);
  EXPECT_FALSE(state->aborted());
  EXPECT_THAT(log, HasSubstr("worker/1 (host host-a, pid 103) is lost: was killed by signal 9 (SIGKILL); "
                             "the job goes on without it"));
  state->disconnected(workers[1], now);
  EXPECT_THAT(losses_told_to(workers[0]), ElementsAre("worker/1 incarnation 0")) << "once, not twice";
}

TEST_F(GoOnTest, AProcessThatEndsAfterItHasLeftIsNoLoss) {
  assemble();
  leave(workers[1]);
  exited(1, "exited with code 1");
  EXPECT_THAT(losses_told_to(workers[0]), IsEmpty());
  EXPECT_THAT(log, Not(HasSubstr("is lost")));
}

TEST_F(GoOnTest, ASilentWorkerIsLostAndIsToldSoWhenItSpeaksAgain) {
  assemble();
  for (int i = 0; i < 4; ++i) {
    now += 3s;
    for (const auto id : {server, workers[0], workers[2]}) heartbeat(id);
    state->tick(now);
  }
  EXPECT_FALSE(state->aborted());
  EXPECT_THAT(log, HasSubstr("is lost: it was silent for longer than 10.0 s; the job goes on without it"));
  EXPECT_THAT(refusal(workers[1]), HasSubstr("the coordinator gave up on this task: it was silent"));
  EXPECT_TRUE(closed.contains(workers[1]));
  sent.clear();
  barrier(workers[1], "too late");
  EXPECT_TRUE(sent[workers[1]].empty());
}

TEST_F(GoOnTest, ABarrierThatWaitsForALostWorkerIsSettledWithoutIt) {
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

TEST_F(GoOnTest, ALaterBarrierDoesNotCountTheLostNorWhatTheyBrought) {
  assemble();
  barrier(workers[1], "x", 60s, "worker");
  state->disconnected(workers[1], now);
  EXPECT_THAT(log, HasSubstr("is lost while it waited in barrier 'x': its connection closed"));
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

TEST_F(GoOnTest, ANewIncarnationMayJoinAtAnyTimeAndCountsAgain) {
  assemble();
  state->disconnected(workers[1], now);
  now += 1h;
  for (const auto id : {server, workers[0], workers[2]}) heartbeat(id);
  const auto again = join("worker", 1, {.address = "10.0.0.1:9", .incarnation = 1});
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
  const auto again = join("worker", 1, {.address = "10.0.0.1:9", .incarnation = 1});
  for (const auto id : {again, server}) {
    ASSERT_TRUE(assembled(id));
    const auto tasks = find(id, proto::FromCoordinator::kAssembled)->assembled();
    ASSERT_EQ(tasks.tasks_size(), 4);
    EXPECT_EQ(tasks.tasks(2).address(), "10.0.0.1:9");
    EXPECT_EQ(tasks.tasks(2).incarnation(), 1);
    ASSERT_EQ(tasks.lost_size(), 1);
    EXPECT_EQ(from_proto(tasks.lost(0)), TaskName::of("worker", 2));
  }
}

TEST_F(GoOnTest, EveryOtherTaskIsToldOfALoss) {
  assemble();
  state->disconnected(workers[1], now);
  for (const auto id : {server, workers[0], workers[2]}) {
    EXPECT_THAT(losses_told_to(id), ElementsAre("worker/1 incarnation 0"));
  }
}

TEST_F(GoOnTest, AnIncarnationWhoseDeathWasNotNoticedIsToldAsLostWhenTheNextJoins) {
  assemble();
  const auto again = join("worker", 1, {.incarnation = 1});
  EXPECT_THAT(losses_told_to(server), ElementsAre("worker/1 incarnation 0"));
  EXPECT_THAT(losses_told_to(again), IsEmpty());
  state->disconnected(workers[1], now);
  EXPECT_THAT(losses_told_to(server), ElementsAre("worker/1 incarnation 0"));
}

TEST_F(GoOnTest, TheLossOfTheLastWorkerAborts) {
  assemble();
  state->disconnected(workers[1], now);
  state->disconnected(workers[0], now);
  EXPECT_FALSE(state->aborted());
  exited(2, "exited with code 3");
  ASSERT_TRUE(state->aborted());
  EXPECT_THAT(abort_reason(server), HasSubstr("worker/2 (host host-a, pid 104) is lost: exited with code 3; "
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

TEST_F(GoOnTest, ALossBeforeTheJobIsAssembledAborts) {
  make(cluster, LossPolicy::kGoOn);
  const auto a = join("worker", 0);
  const auto b = join("worker", 1);
  state->disconnected(b, now);
  EXPECT_THAT(abort_reason(a), HasSubstr("worker/1 (host host-a, pid 102) was lost: its connection closed"));
}

TEST_F(GoOnTest, AProcessThatEndsBeforeItJoinsAborts) {
  make(cluster, LossPolicy::kGoOn);
  const auto a = join("worker", 0);
  exited(1, "exited with code 5");
  EXPECT_THAT(abort_reason(a), HasSubstr("worker/1 exited with code 5 before it joined"));
}

TEST_F(GoOnTest, ALostServerIsWaitedForAndDoesNotAbort) {
  assemble();
  for (const auto id : workers) barrier(id, "all");
  state->disconnected(server, now);
  EXPECT_FALSE(state->aborted());
  EXPECT_THAT(
      log, HasSubstr("ps/0 (host host-a, pid 101) is lost: its connection closed; the workers wait for it"));
  EXPECT_THAT(losses_told_to(workers[0]), ElementsAre("ps/0 incarnation 0"));
  EXPECT_EQ(reply(workers[0]), nullptr) << "its state is needed: a barrier waits for it";
  const auto again = join("ps", 0, {.incarnation = 1});
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

TEST_F(GoOnTest, TheLossOfTheLastWorkerThatHadNotLeftFinishesTheJob) {
  assemble();
  leave(workers[0]);
  leave(workers[2]);
  EXPECT_FALSE(told_finished(server));
  state->disconnected(workers[1], now);
  EXPECT_TRUE(told_finished(server));
  EXPECT_FALSE(state->aborted());
}

TEST_F(GoOnTest, AServerThatJoinsAgainAfterTheEndIsToldOfIt) {
  assemble();
  state->disconnected(server, now);
  for (const auto id : workers) leave(id);
  EXPECT_TRUE(told_finished(join("ps", 0, {.incarnation = 1})));
}

TEST_F(GoOnTest, WithRestartsADeadWorkerMayComeBackUntilItsLauncherSaysOtherwise) {
  assemble(/*restarts=*/true);
  leave(workers[0]);
  for (const int i : {1, 2}) state->disconnected(workers[static_cast<size_t>(i)], now);
  EXPECT_FALSE(state->aborted());
  EXPECT_FALSE(state->finished());
  leave(join("worker", 1, {.incarnation = 1}));
  EXPECT_FALSE(state->finished());
  exited(2);
  EXPECT_TRUE(state->finished());
}

TEST_F(GoOnTest, WithRestartsTheLastWorkerMayDieAndComeBack) {
  cluster = {{"worker", {0}}};
  make(cluster, LossPolicy::kGoOn, /*restarts=*/true);
  state->disconnected(join("worker", 0), now);
  EXPECT_FALSE(state->aborted());
  const auto again = join("worker", 0, {.incarnation = 1});
  EXPECT_TRUE(assembled(again));
  state->disconnected(again, now);
  EXPECT_FALSE(state->aborted());
  state->exited(TaskName::of("worker", 0), "exited with code 3", now);
  ASSERT_TRUE(state->aborted());
  EXPECT_THAT(state->aborted()->reason, HasSubstr("is lost: exited with code 3; it was the last worker"));
}

TEST_F(GoOnTest, WithRestartsALossBeforeTheJobIsAssembledIsWaitedFor) {
  make(cluster, LossPolicy::kGoOn, /*restarts=*/true);
  join("ps", 0);
  const auto a = join("worker", 0);
  join("worker", 1);
  state->disconnected(a, now);
  EXPECT_FALSE(state->aborted());
  join("worker", 0, {.incarnation = 1});
  EXPECT_TRUE(assembled(join("worker", 2)));
}

TEST_F(GoOnTest, OnlyLaunchersMaySayThatATaskHasEnded) {
  assemble();
  proto::FromMember message;
  message.mutable_request()->set_id(1);
  *message.mutable_request()->mutable_exited()->mutable_task() = to_proto(TaskName::of("worker", 1));
  message.mutable_request()->mutable_exited()->set_how("was killed");
  state->received(workers[0], message, now);
  EXPECT_EQ(reply(workers[0])->code(), proto::Reply::INVALID_ARGUMENT);
  EXPECT_THAT(losses_told_to(workers[0]), IsEmpty());
  const auto launcher = join("launcher", 0, {.observer = true});
  state->received(launcher, message, now);
  EXPECT_EQ(reply(launcher)->code(), proto::Reply::OK);
  EXPECT_THAT(losses_told_to(workers[0]), ElementsAre("worker/1 incarnation 0"));
}

TEST_F(GoOnTest, AKeyThatANewIncarnationPutsAgainIsWhatOthersGet) {
  assemble();
  put(server, "address/ps/0", "10.0.0.1:1");
  state->disconnected(server, now);
  put(join("ps", 0, {.incarnation = 1}), "address/ps/0", "10.0.0.1:2");
  get(workers[0], "address/ps/0");
  EXPECT_EQ(reply(workers[0])->value(), "10.0.0.1:2");
}

TEST_F(GoOnTest, UnderRejoinOthersAreToldOfALossToo) {
  make(cluster, LossPolicy::kRejoin);
  const auto a = join("worker", 0);
  state->disconnected(join("worker", 1), now);
  EXPECT_THAT(losses_told_to(a), ElementsAre("worker/1 incarnation 0"));
}

}  // namespace
}  // namespace muster
