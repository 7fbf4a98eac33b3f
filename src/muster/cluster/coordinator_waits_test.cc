// Tasks that wait for each other: which of their waits belong together, who is counted on meanwhile, and what
// is said when nobody can go on.

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

class WaitsTest : public CoordinatorStateFixture {
 protected:
  WaitsTest() {
    set_log_sink([](std::string_view) {});
  }
  ~WaitsTest() override { set_log_sink(nullptr); }

  void assemble(FailurePolicy policy) {
    cluster = {{"worker", {0, 1, 2}}};
    make(cluster, policy, /*restarts=*/true);
    for (int i = 0; i < 3; ++i) workers.push_back(enter("worker", i));
  }

  void gather(size_t worker, const std::string& name, const std::string& value = "") {
    proto::FromMember message;
    auto& request = *message.mutable_request();
    request.set_id(++last_request);
    request.set_timeout_ms(-1);
    request.mutable_barrier()->set_name(name);
    request.mutable_barrier()->set_job("worker");
    request.mutable_barrier()->set_value(value);
    requests[worker] = last_request;
    state->received(workers[worker], message, now);
  }

  void asks_to_be_away(size_t worker) {
    proto::FromMember message;
    message.mutable_away()->set_request(requests.at(worker));
    state->received(workers[worker], message, now);
  }

  void has_returned(size_t worker) {
    proto::FromMember message;
    message.mutable_returned()->set_request(requests.at(worker));
    state->received(workers[worker], message, now);
  }

  bool answered(size_t worker) {
    const auto* found = reply(workers[worker]);
    return found != nullptr && found->id() == requests.at(worker);
  }
  std::vector<std::string> values(size_t worker) {
    const auto& got = reply(workers[worker])->values();
    return {got.begin(), got.end()};
  }
  bool told_to_return(size_t worker) {
    const auto* found = find(workers[worker], proto::FromCoordinator::kReturnNow);
    return found != nullptr && found->return_now().request() == requests.at(worker);
  }
  bool may_be_away(size_t worker) {
    return find(workers[worker], proto::FromCoordinator::kAwayGranted) != nullptr;
  }

  void restart(int worker) {
    state->disconnected(workers[static_cast<size_t>(worker)], now);
    workers[static_cast<size_t>(worker)] = enter("worker", worker, {.incarnation = 1});
  }

  std::vector<uint64_t> workers;
  std::map<size_t, uint64_t> requests;  // the last of each
};

TEST_F(WaitsTest, AWorkerThatWasStartedAgainIsNotWaitedForWhereItComesLater) {
  assemble(FailurePolicy::kGoOn);
  for (size_t i = 0; i < 3; ++i) gather(i, "epoch");
  restart(1);
  gather(0, "epoch", "second of 0");
  gather(2, "epoch", "second of 2");
  ASSERT_TRUE(answered(0) && answered(2));
  EXPECT_THAT(values(0), ElementsAre("second of 0", "second of 2"));
}

TEST_F(WaitsTest, AWorkerThatWasStartedAgainDoesNotWaitWhereTheOthersHaveBeen) {
  assemble(FailurePolicy::kGoOn);
  for (size_t i = 0; i < 3; ++i) gather(i, "start");
  restart(1);
  gather(0, "epoch 3");
  gather(1, "start", "alone");
  ASSERT_TRUE(answered(1));
  EXPECT_THAT(values(1), ElementsAre("alone"));
  EXPECT_FALSE(answered(0));  // where it has not been, it is waited for
  gather(2, "epoch 3");
  EXPECT_FALSE(answered(0));
  gather(1, "epoch 3");
  EXPECT_TRUE(answered(0) && answered(1) && answered(2));
}

TEST_F(WaitsTest, WhatIsBroughtAtDifferentTimesIsNeverPutTogether) {
  assemble(FailurePolicy::kGoOn);
  for (size_t i = 0; i < 3; ++i) gather(i, "sums");
  restart(1);
  gather(0, "sums", "2 of 0");
  gather(1, "sums", "1 of 1");
  ASSERT_TRUE(answered(1));
  EXPECT_THAT(values(1), ElementsAre("1 of 1"));
  EXPECT_FALSE(answered(0));  // worker 2 is to come, and by now worker 1 too
  gather(2, "sums", "2 of 2");
  EXPECT_FALSE(answered(0));
  gather(1, "sums", "2 of 1");
  EXPECT_THAT(values(0), ElementsAre("2 of 0", "2 of 1", "2 of 2"));
}

TEST_F(WaitsTest, WhoeverGaveABarrierUpMayComeToItAgain) {
  assemble(FailurePolicy::kGoOn);
  barrier(workers[0], "a", 1000ms, "worker");
  now += 2s;
  for (const auto id : workers) heartbeat(id);
  state->tick(now);
  EXPECT_EQ(reply(workers[0])->code(), proto::Reply::DEADLINE_EXCEEDED);
  gather(1, "a");
  gather(2, "a");
  EXPECT_FALSE(answered(1));
  gather(0, "a");
  EXPECT_TRUE(answered(0) && answered(1) && answered(2));
}

TEST_F(WaitsTest, NobodyGoesOnBeforeAllThatWereAwayHaveReturned) {
  assemble(FailurePolicy::kGoOn);
  gather(0, "a", "x");
  asks_to_be_away(0);
  EXPECT_TRUE(may_be_away(0));
  gather(1, "a");
  asks_to_be_away(1);
  gather(2, "a");
  EXPECT_TRUE(told_to_return(0) && told_to_return(1));
  EXPECT_FALSE(told_to_return(2));
  EXPECT_FALSE(answered(0) || answered(1) || answered(2));
  has_returned(1);
  EXPECT_FALSE(answered(0) || answered(1) || answered(2));
  has_returned(0);
  EXPECT_TRUE(answered(0) && answered(1) && answered(2));
  EXPECT_THAT(values(2), ElementsAre("x", "", ""));
}

TEST_F(WaitsTest, OneThatDiesWhileItReturnsHoldsNobodyUp) {
  assemble(FailurePolicy::kGoOn);
  gather(0, "a");
  asks_to_be_away(0);
  gather(1, "a");
  gather(2, "a");
  EXPECT_FALSE(answered(1));
  state->disconnected(workers[0], now);
  EXPECT_TRUE(answered(1) && answered(2));
}

TEST_F(WaitsTest, WhoeverHasItsAnswerIsNotGrantedToBeAway) {
  assemble(FailurePolicy::kGoOn);
  for (size_t i = 0; i < 3; ++i) gather(i, "a");
  asks_to_be_away(0);
  EXPECT_FALSE(may_be_away(0));
}

TEST_F(WaitsTest, WhoeverPutsAValueGoesOnWhenThoseWhoWaitedForItAreBack) {
  assemble(FailurePolicy::kGoOn);
  get(workers[0], "k");
  requests[0] = last_request;
  asks_to_be_away(0);
  put(workers[1], "k", "v");
  requests[1] = last_request;
  EXPECT_FALSE(answered(0) || answered(1));
  has_returned(0);
  EXPECT_TRUE(answered(0) && answered(1));
}

TEST_F(WaitsTest, ADeadlockIsAnErrorOnAllTasks) {
  assemble(FailurePolicy::kAbort);
  gather(0, "a");
  gather(1, "b");
  gather(2, "b");
  const char* const barriers[] = {"a", "b", "b"};
  for (int i = 0; i < 48 && !state->aborted(); ++i) {
    now += 250ms;
    for (size_t worker = 0; worker < 3; ++worker) {
      proto::FromMember message;
      auto& wait = *message.mutable_heartbeat()->add_waits();
      wait.set_id(1);
      wait.set_what(fmt::format("barrier '{}'", barriers[worker]));
      wait.set_barrier(barriers[worker]);
      wait.set_main(true);
      state->received(workers[worker], message, now);
    }
    state->tick(now);
  }
  for (const auto id : workers) {
    EXPECT_THAT(abort_reason(id),
                AllOf(HasSubstr("deadlock: worker/0 waits in barrier 'a' for worker/1 and worker/2"),
                      HasSubstr("worker/1 waits in barrier 'b' for worker/0")));
  }
}

}  // namespace
}  // namespace muster::detail
