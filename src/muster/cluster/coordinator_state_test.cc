#include "muster/cluster/coordinator_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/log.h"
#include "muster/cluster/coordinator_state_test.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using CoordinatorStateTest = CoordinatorStateFixture;

TEST_F(CoordinatorStateTest, TheJobIsAssembledWhenTheLastTaskEnters) {
  make(cluster);
  const auto first = enter("worker", 0);
  EXPECT_FALSE(assembled(first));
  EXPECT_THAT(state->missing(), ::testing::ElementsAre("/job:worker/task:1"));
  const auto second = enter("worker", 1);
  EXPECT_TRUE(assembled(first));
  ASSERT_TRUE(assembled(second));
  EXPECT_EQ(find(second, proto::FromCoordinator::kAssembled)->assembled().tasks_size(), 2);
}

TEST_F(CoordinatorStateTest, AWrongSecretIsRefusedAndDoesNotEnter) {
  make(cluster);
  const auto stranger = enter("worker", 0, {.secret = "wrong"});
  EXPECT_THAT(refusal(stranger), HasSubstr("does not know the job's secret"));
  EXPECT_TRUE(closed.contains(stranger));
  EXPECT_EQ(find(stranger, proto::FromCoordinator::kWelcome), nullptr);
  EXPECT_EQ(state->missing().size(), 2u);
}

TEST_F(CoordinatorStateTest, NothingWorksBeforeTheProof) {
  make(cluster);
  state->connected(50, "peer", now);
  barrier(50, "b");
  EXPECT_THAT(refusal(50), HasSubstr("the first message of the handshake was not a Hello"));
  EXPECT_EQ(reply(50), nullptr);
}

TEST_F(CoordinatorStateTest, ASecondTaskOfTheSameNameIsRefused) {
  make(cluster);
  const auto first = enter("worker", 0);
  const auto second = enter("worker", 0);
  EXPECT_THAT(refusal(second),
              HasSubstr("/job:worker/task:0 has already entered the job, as pid 101 on host host-a"));
  EXPECT_EQ(refusal(first), "");
}

TEST_F(CoordinatorStateTest, StrangersToTheClusterAreRefused) {
  make(cluster);
  EXPECT_THAT(refusal(enter("ps", 0)),
              HasSubstr("no task /job:ps/task:0; it has /job:worker/task:0, /job:worker/task:1"));
  EXPECT_THAT(refusal(enter("worker", 0, {.job_id = "other"})),
              HasSubstr("it belongs to job 'other', and this is job 'j'"));
  EXPECT_THAT(refusal(enter("worker", 0, {.tasks = TaskSet{{"worker", {0, 1, 2}}}})),
              HasSubstr("a cluster of 3 worker, and this job has 2 worker"));
}

TEST_F(CoordinatorStateTest, ABarrierCompletesWhenAllAreInItAndCanBeUsedAgain) {
  make(cluster);
  const auto a = enter("worker", 0);
  const auto b = enter("worker", 1);
  for (int round = 0; round < 2; ++round) {
    sent.clear();
    barrier(a, "x");
    EXPECT_EQ(reply(a), nullptr);
    barrier(b, "x");
    ASSERT_NE(reply(a), nullptr);
    EXPECT_EQ(reply(a)->code(), proto::Reply::OK);
    EXPECT_EQ(reply(b)->code(), proto::Reply::OK);
  }
}

TEST_F(CoordinatorStateTest, ABarrierOfOneJobDoesNotWaitForTheOthers) {
  cluster = {{"ps", {0}}, {"worker", {0, 1}}};
  make(cluster);
  const auto server = enter("ps", 0);
  const auto a = enter("worker", 0);
  const auto b = enter("worker", 1);
  barrier(a, "x", 60s, "worker");
  barrier(b, "x", 60s, "worker");
  EXPECT_EQ(reply(a)->code(), proto::Reply::OK);
  barrier(server, "y", 60s, "worker");
  EXPECT_EQ(reply(server)->code(), proto::Reply::INVALID_ARGUMENT);
}

TEST_F(CoordinatorStateTest, AnOverdueBarrierNamesWhoIsMissing) {
  make(cluster);
  const auto a = enter("worker", 0);
  const auto b = enter("worker", 1);
  barrier(a, "start", 5s);
  now += 4s;
  heartbeat(b);
  now += 1s;
  state->tick(now);
  ASSERT_NE(reply(a), nullptr);
  EXPECT_EQ(reply(a)->code(), proto::Reply::DEADLINE_EXCEEDED);
  EXPECT_THAT(reply(a)->message(), HasSubstr("barrier 'start' did not complete within 5.0 s: still missing "
                                             "worker/1 (host host-a, pid 102), last heard of 1.0 s ago"));
}

TEST_F(CoordinatorStateTest, ABarrierWithATaskThatHasFinishedFailsAtOnce) {
  make(cluster);
  const auto a = enter("worker", 0);
  const auto b = enter("worker", 1);
  barrier(a, "x");
  leave(b);
  EXPECT_EQ(reply(a)->code(), proto::Reply::PEER_LOST);
  EXPECT_THAT(reply(a)->message(), HasSubstr("barrier 'x' can't complete: worker/1 has already finished"));
}

TEST_F(CoordinatorStateTest, AMeetingWithATaskThatHasFinishedSaysWhatIsForAll) {
  make(cluster);
  const auto a = enter("worker", 0);
  const auto b = enter("worker", 1);
  barrier(a, "muster/rendezvous of workers");
  leave(b);
  EXPECT_EQ(reply(a)->code(), proto::Reply::PEER_LOST);
  EXPECT_THAT(reply(a)->message(), HasSubstr("worker/1 has already finished, without what other tasks do "
                                             "together: Trainers and collectives are for all workers"));
}

TEST_F(CoordinatorStateTest, GetWaitsForPut) {
  make(cluster);
  const auto a = enter("worker", 0);
  const auto b = enter("worker", 1);
  proto::FromMember get;
  get.mutable_request()->set_id(1);
  get.mutable_request()->set_timeout_ms(1000);
  get.mutable_request()->mutable_get()->set_key("k");
  state->received(a, get, now);
  EXPECT_EQ(reply(a), nullptr);
  proto::FromMember put;
  put.mutable_request()->set_id(1);
  put.mutable_request()->mutable_put()->set_key("k");
  put.mutable_request()->mutable_put()->set_value(std::string("v\0w", 3));
  state->received(b, put, now);
  EXPECT_EQ(reply(a)->value(), std::string("v\0w", 3));
  get.mutable_request()->mutable_get()->set_key("never");
  state->received(b, get, now);
  now += 1s;
  state->tick(now);
  EXPECT_THAT(reply(b)->message(), HasSubstr("nobody put the key 'never' within 1.0 s"));
}

TEST_F(CoordinatorStateTest, AClosedConnectionAbortsTheJobAndSaysWhere) {
  make(cluster);
  const auto a = enter("worker", 0);
  const auto b = enter("worker", 1);
  barrier(b, "sync");
  now += 400ms;
  state->disconnected(b, now);
  EXPECT_THAT(abort_reason(a),
              AllOf(HasSubstr("worker/1 (host host-a, pid 102) failed while it waited in barrier 'sync'"),
                    HasSubstr("its connection closed; last heard of 0.4 s ago")));
  ASSERT_TRUE(state->aborted());
  EXPECT_EQ(state->aborted()->by, TaskName::of("worker", 1));
  EXPECT_TRUE(state->aborted()->died);
}

TEST_F(CoordinatorStateTest, SilencePastTheLimitIsAFailureAndHeartbeatsPreventIt) {
  make(cluster);
  const auto a = enter("worker", 0);
  const auto b = enter("worker", 1);
  for (int i = 0; i < 5; ++i) {
    now += 3s;
    heartbeat(a);
    if (i < 2) heartbeat(b);
    state->tick(now);
  }
  EXPECT_EQ(abort_reason(a), "");
  now += 2s;
  state->tick(now);
  EXPECT_THAT(abort_reason(a),
              HasSubstr("worker/1 (host host-a, pid 102) failed: it was silent for longer than 10.0 s"));
  EXPECT_FALSE(state->aborted()->died);
  EXPECT_THAT(refusal(b), HasSubstr("gave up on this task"));
}

TEST_F(CoordinatorStateTest, AnAbortIsStickyAndWhoComesLaterIsRefused) {
  make(cluster);
  const auto a = enter("worker", 0);
  proto::FromMember message;
  message.mutable_abort()->set_reason("the loss is not a number");
  state->received(a, message, now);
  EXPECT_THAT(abort_reason(a), HasSubstr("worker/0 (host host-a, pid 101): the loss is not a number"));
  state->abort("a second reason", std::nullopt);
  EXPECT_THAT(state->aborted()->reason, HasSubstr("not a number"));
  EXPECT_THAT(refusal(enter("worker", 1)), HasSubstr("the job was aborted: worker/0"));
}

TEST_F(CoordinatorStateTest, ServersAreToldWhenAllWorkersHaveLeft) {
  cluster = {{"ps", {0}}, {"worker", {0, 1}}};
  make(cluster);
  const auto server = enter("ps", 0);
  const auto a = enter("worker", 0);
  const auto b = enter("worker", 1);
  leave(a);
  EXPECT_EQ(find(server, proto::FromCoordinator::kFinished), nullptr);
  leave(b);
  EXPECT_NE(find(server, proto::FromCoordinator::kFinished), nullptr);
  EXPECT_TRUE(state->finished());
  state->disconnected(server, now);
  EXPECT_FALSE(state->aborted());
}

TEST_F(CoordinatorStateTest, AFailedTaskMayEnterAgainWhenThePolicySaysSo) {
  make(cluster, FailurePolicy::kWait);
  const auto a = enter("worker", 0);
  const auto b = enter("worker", 1);
  barrier(b, "x");
  state->disconnected(b, now);
  EXPECT_FALSE(state->aborted());
  barrier(a, "x");
  EXPECT_EQ(reply(a), nullptr) << "the arrival of the dead incarnation must not count";
  const auto again = enter("worker", 1, {.incarnation = 1});
  EXPECT_TRUE(assembled(again));
  barrier(again, "x");
  EXPECT_EQ(reply(a)->code(), proto::Reply::OK);
}

TEST_F(CoordinatorStateTest, ANewIncarnationReplacesOneWhoseDeathWasNotNoticed) {
  make(cluster, FailurePolicy::kWait);
  enter("worker", 0);
  const auto old = enter("worker", 1);
  const auto again = enter("worker", 1, {.incarnation = 1});
  EXPECT_EQ(refusal(again), "");
  EXPECT_TRUE(closed.contains(old));
  state->disconnected(old, now);
  now += 1s;
  barrier(again, "x");
  EXPECT_EQ(state->present().size(), 2u);
}

TEST_F(CoordinatorStateTest, SeveralHostsOnALoopbackAddressAreAnError) {
  make(cluster);
  const auto a = enter("worker", 0, {.address = "10.0.0.1:1", .host = "host-a"});
  enter("worker", 1, {.address = "127.0.0.1:1", .host = "host-b"});
  EXPECT_THAT(abort_reason(a), AllOf(HasSubstr("worker/1 (host host-b"),
                                     HasSubstr("loopback address 127.0.0.1:1"), HasSubstr("--interface")));
}

TEST_F(CoordinatorStateTest, OneHostOnLoopbackIsFine) {
  make(cluster);
  const auto a = enter("worker", 0, {.address = "127.0.0.1:1"});
  enter("worker", 1, {.address = "127.0.0.1:2"});
  EXPECT_TRUE(assembled(a));
  EXPECT_FALSE(state->aborted());
}

TEST_F(CoordinatorStateTest, ATaskThatGaveUpWaitingForItsWelcomeHasNotFailed) {
  make(cluster);
  const auto partner = enter("worker", 1);
  const auto gave_up = enter("worker", 0, {.falls_silent = true});
  EXPECT_NE(find(gave_up, proto::FromCoordinator::kWelcome), nullptr);
  EXPECT_FALSE(assembled(partner));
  state->disconnected(gave_up, now);
  EXPECT_FALSE(state->aborted());
  enter("worker", 0);
  EXPECT_TRUE(assembled(partner));
}

TEST_F(CoordinatorStateTest, ItsOwnPauseIsNobodysSilence) {
  make(cluster);
  const auto a = enter("worker", 0);
  enter("worker", 1);
  state->tick(now);
  now += 60s;
  state->tick(now);
  EXPECT_EQ(abort_reason(a), "");
  for (int i = 0; i < 4; ++i) {
    now += 3s;
    heartbeat(a);
    state->tick(now);
  }
  EXPECT_THAT(abort_reason(a), HasSubstr("worker/1 (host host-a, pid 102) failed: it was silent"));
}

TEST_F(CoordinatorStateTest, AHalfOpenClientIsDropped) {
  make(cluster);
  state->connected(50, "peer", now);
  now += 16s;
  state->tick(now);
  EXPECT_TRUE(closed.contains(50));
  EXPECT_FALSE(state->aborted());
}

TEST_F(CoordinatorStateTest, StrangersCannotFillTheLog) {
  make(cluster);
  int lines = 0;
  set_log_sink([&](std::string_view) { ++lines; });
  for (int i = 0; i < 1000; ++i) enter("worker", 0, {.secret = "guess"});
  set_log_sink(nullptr);
  EXPECT_GE(lines, 1);
  EXPECT_LE(lines, 20);
}

TEST_F(CoordinatorStateTest, ATaskThatIsSlowToProveItselfIsToldToBeginAgain) {
  make(cluster);
  const auto slow = enter("worker", 0, {.falls_silent_before_proof = true});
  now += 16s;
  state->tick(now);
  const auto* message = find(slow, proto::FromCoordinator::kRefusal);
  ASSERT_NE(message, nullptr);
  EXPECT_EQ(message->refusal().kind(), proto::Refusal::TOO_SLOW);
  const auto partner = enter("worker", 1);
  enter("worker", 0);
  EXPECT_TRUE(assembled(partner));
}

TEST_F(CoordinatorStateTest, ATaskThatHasProvedItselfMayTakeItsTime) {
  make(cluster);
  const auto partner = enter("worker", 1);
  const auto slow = enter("worker", 0, {.falls_silent = true});
  for (int i = 0; i < 10; ++i) {
    now += 9s;
    heartbeat(partner);
    state->tick(now);
  }
  EXPECT_EQ(refusal(slow), "");
  heartbeat(slow);
  EXPECT_TRUE(assembled(partner));
}

TEST_F(CoordinatorStateTest, AProcessThatEndsBeforeItEntersIsReportedToThoseWhoWait) {
  make(cluster);
  state->exited(TaskName::of("worker", 1), "exited with code 3", now);
  EXPECT_FALSE(state->aborted()) << "nobody waits yet";
  const auto a = enter("worker", 0);
  EXPECT_THAT(abort_reason(a), HasSubstr("worker/1 exited with code 3 before it entered the job"));
}

TEST_F(CoordinatorStateTest, AnEvaluatorComesAndGoesWithoutConsequence) {
  make(cluster);
  const auto a = enter("worker", 0);
  const auto evaluator = enter("evaluator", 0, {.observer = true});
  EXPECT_EQ(refusal(evaluator), "");
  state->disconnected(evaluator, now);
  EXPECT_EQ(abort_reason(a), "");
  EXPECT_EQ(state->missing().size(), 1u);
}

TEST_F(CoordinatorStateTest, ALauncherThatFailsEndsTheJob) {
  make(cluster, FailurePolicy::kWait);
  const auto a = enter("worker", 0);
  const auto launcher = enter("launcher", 1, {.host = "host-b", .observer = true});
  state->disconnected(launcher, now);
  EXPECT_THAT(abort_reason(a), HasSubstr("launcher/1 (host host-b"));
}

TEST_F(CoordinatorStateTest, StrangersDoNotKeepItFromBeingIdle) {
  make(cluster);
  state->connected(++last, "stranger", now);
  connect(TaskName::of("worker", 0), {.falls_silent_before_proof = true});
  EXPECT_TRUE(state->idle());
  const uint64_t member = enter("worker", 1);
  EXPECT_FALSE(state->idle());
  leave(member);
  state->disconnected(member, now);
  EXPECT_TRUE(state->idle());
}

TEST_F(CoordinatorStateTest, WhoGivesUpBeforeAllAreThereIsNotTheOneToBlame) {
  make(cluster);
  const uint64_t member = enter("worker", 0);
  proto::FromMember message;
  message.mutable_abort()->set_reason("not all tasks entered the job within 3.0 s");
  state->received(member, message, now);
  EXPECT_THAT(abort_reason(member), HasSubstr("within 3.0 s; not there yet: /job:worker/task:1"));
}

}  // namespace
}  // namespace muster::detail
