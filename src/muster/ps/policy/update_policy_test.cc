#include "muster/ps/policy/update_policy.h"

#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/ps/policy/policy_script_test.h"

namespace muster::detail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr Mode kModes[] = {Mode::kAsync, Mode::kSync, Mode::kSsp, Mode::kLocal};

TEST(Phases, AsyncHandsOutNoMoreTokensThanStepsAreLeft) {
  Script script({.workers = 3, .phases = {{0, Mode::kAsync}, {4, Mode::kSync}}});
  script.enter_all(3);
  EXPECT_EQ(script.push(0), "apply 0#1 = 1, 0 applied begins 1");
  EXPECT_EQ(script.push(0), "apply 0#2 = 2") << "two steps are left, and two tokens out";
  EXPECT_EQ(script.push(1), "apply 1#1 = 3");
  EXPECT_EQ(script.policy.mode(), Mode::kAsync);
  EXPECT_EQ(script.push(2), "apply 2#1 = 4, 0 applied begins 4, 1 applied begins 4, 2 applied begins 4");
  EXPECT_EQ(script.policy.mode(), Mode::kSync);
  EXPECT_EQ(script.last.answers.at(0).mode, Mode::kSync);
  EXPECT_EQ(script.push(0), "");
  EXPECT_EQ(script.push(2), "");
  EXPECT_EQ(script.push(1),
            "apply 0#3 1#2 2#2 = 5, 0 applied begins 5, 2 applied begins 5, 1 applied begins 5");
}

TEST(Phases, LateGradientsOfSyncAreDroppedByAsyncAndCounted) {
  Script script({.workers = 3, .phases = {{0, Mode::kSync}, {1, Mode::kAsync}}, .aggregate = 2});
  script.enter_all(3);
  script.push(0);
  EXPECT_EQ(script.push(1), "apply 0#1 1#1 = 1, 0 applied begins 1, 1 applied begins 1");
  EXPECT_EQ(script.last.answers.at(0).mode, Mode::kAsync);
  EXPECT_EQ(script.push(2), "drop 2#1, 2 dropped begins 1");
  EXPECT_EQ(script.policy.counts().at(2).dropped, 1);
  EXPECT_THAT(script.policy.counts().at(2).staleness, IsEmpty());
  EXPECT_EQ(script.push(2), "apply 2#2 = 2, 2 applied begins 2");
}

TEST(Phases, ALateGradientOfSyncTakesNoTokenFromAsync) {
  Script script(
      {.workers = 2, .phases = {{0, Mode::kSync}, {1, Mode::kAsync}, {2, Mode::kSync}}, .aggregate = 1});
  script.enter_all(2);
  EXPECT_EQ(script.push(0), "apply 0#1 = 1, 0 applied begins 1");
  EXPECT_EQ(script.push(0), "apply 0#2 = 2, 0 applied begins 2")
      << "worker 1 computes for step 0 all the while";
  EXPECT_EQ(script.policy.mode(), Mode::kSync);
  EXPECT_EQ(script.push(1), "drop 1#1, 1 dropped begins 2");
}

TEST(Phases, SwitchThriceAtExactlyTheirStepsAndDropNothing) {
  Script script({.workers = 3,
                 .phases = {{0, Mode::kAsync}, {5, Mode::kSync}, {9, Mode::kSsp}, {16, Mode::kLocal}},
                 .max_steps = 20,
                 .staleness = 2});
  script.enter_all(3);
  for (int64_t step = 1; step <= 20; ++step) {
    const Mode before = script.policy.mode();
    EXPECT_EQ(before, step <= 5    ? Mode::kAsync
                      : step <= 9  ? Mode::kSync
                      : step <= 16 ? Mode::kSsp
                                   : Mode::kLocal);
    script.run_to(step);
    ASSERT_EQ(script.policy.step(), step);
  }
  int64_t applied = 0;
  for (const auto& [worker, counts] : script.policy.counts()) {
    applied += counts.applied;
    EXPECT_EQ(counts.dropped, 0) << "worker " << worker;
  }
  EXPECT_EQ(applied, 5 + 3 * 4 + 7 + 3 * 4);
  EXPECT_EQ(script.policy.version(), 20);
}

TEST(Phases, ATokenOfAFailedWorkerIsHandedOutAgainSoThatThePhaseEnds) {
  Script script({.workers = 2, .phases = {{0, Mode::kAsync}, {2, Mode::kSync}}});
  script.enter_all(2);
  EXPECT_EQ(script.push(0), "apply 0#1 = 1");
  EXPECT_EQ(script.fail(1), "0 applied begins 1");
  EXPECT_EQ(script.push(0), "apply 0#2 = 2, 0 applied begins 2");
  EXPECT_EQ(script.policy.mode(), Mode::kSync);
}

// The learning rate of a step may depend on it, and has to be the same on all workers.
class SamplesOf : public ::testing::TestWithParam<Mode> {};

TEST_P(SamplesOf, AreTheSameForAllWorkersOfASynchronousStepWheneverTheyCome) {
  UpdatePolicy policy({.workers = 3, .phases = {{0, GetParam()}}});
  EXPECT_EQ(policy.enter(0, 0).answers.at(0).samples, 0);
  policy.push(0, {.sequence = 1, .samples = 5});
  EXPECT_EQ(policy.enter(1, 0).answers.at(0).samples, 0)
      << "5 are pushed, and belong to the step that it begins";
  policy.push(1, {.sequence = 1, .samples = 7});
  EXPECT_EQ(policy.enter(2, 0).answers.at(0).samples, 0);
  const Decision update = policy.push(2, {.sequence = 1, .samples = 9});
  ASSERT_EQ(update.answers.size(), 3U);
  for (const auto& answer : update.answers) EXPECT_EQ(answer.samples, 21);
  policy.push(0, {.sequence = 2, .step = 1, .version = 1, .samples = 5});
  EXPECT_EQ(policy.enter(1, 1).answers.at(0).samples, 21) << "as one that is started again";
}

INSTANTIATE_TEST_SUITE_P(SynchronousModes, SamplesOf, ::testing::Values(Mode::kSync, Mode::kSsp));

TEST(Samples, OfAGradientThatCameTooLateForTheLastStepOfAnEpochCountAtItsEnd) {
  UpdatePolicy policy({.workers = 2, .phases = {{0, Mode::kSync}}, .aggregate = 1});
  policy.enter(0, 0);
  policy.enter(1, 0);
  policy.push(0, {.sequence = 1, .samples = 5});
  policy.finish_epoch(0);
  EXPECT_EQ(policy.push(1, {.sequence = 1, .samples = 7}).answers.at(0).samples, 5)
      << "dropped, within a step";
  const Decision next = policy.finish_epoch(1);
  ASSERT_EQ(next.answers.size(), 2U);
  for (const auto& answer : next.answers) EXPECT_EQ(answer.samples, 12);
}

TEST(Samples, OfAllPushesCountWhateverBecomesOfThem) {
  UpdatePolicy policy({.workers = 2, .max_staleness = 0});
  EXPECT_EQ(policy.enter(0, 0).answers.at(0).samples, 0);
  policy.enter(1, 0);
  EXPECT_EQ(policy.push(0, {.sequence = 1, .samples = 5}).answers.at(0).samples, 5);
  const Decision late = policy.push(1, {.sequence = 1, .samples = 7});
  EXPECT_EQ(late.answers.at(0).outcome, Answer::Outcome::kDropped);
  EXPECT_EQ(late.answers.at(0).samples, 12);
  EXPECT_THROW(policy.push(1, {.sequence = 2, .step = 1, .version = 1, .samples = -1}), InvalidArgument);
  EXPECT_EQ(policy.enter(1, 1).answers.at(0).samples, 12) << "one that comes again knows how far the job is";
}

TEST(MaxSteps, IsReachedExactlyInEveryModeAndAllAreTold) {
  for (const Mode mode : kModes) {
    Script script({.workers = 3, .phases = {{0, mode}}, .max_steps = 7, .staleness = 1});
    script.enter_all(3);
    script.run_to(100);
    EXPECT_EQ(script.policy.step(), 7) << to_string(mode);
    EXPECT_THAT(script.done, ElementsAre(Pair(0, 1), Pair(1, 1), Pair(2, 1))) << to_string(mode);
  }
}

TEST(MaxSteps, ThoseWhoWaitAndThoseWhoHaveFinishedTheEpochAreDone) {
  Script script({.workers = 3, .max_steps = 2});
  script.enter_all(2);
  EXPECT_EQ(script.enter(2), "") << "both tokens are out";
  EXPECT_EQ(script.finish_epoch(1), "2 begins 0");
  EXPECT_EQ(script.push(0), "apply 0#1 = 1");
  EXPECT_EQ(script.push(2), "apply 2#1 = 2, 0 applied done 2, 1 done 2, 2 applied done 2");
}

TEST(MaxSteps, EverythingIsDoneAfterwards) {
  Script script({.workers = 3, .phases = {{0, Mode::kSync}}, .max_steps = 1, .aggregate = 2});
  script.enter_all(3);
  script.push(0);
  EXPECT_EQ(script.push(1), "apply 0#1 1#1 = 1, 0 applied done 1, 1 applied done 1");
  EXPECT_EQ(script.push(2), "drop 2#1, 2 dropped done 1");
  EXPECT_EQ(script.finish_epoch(2), "2 done 1");
  script.fail(2);
  EXPECT_EQ(script.enter(2, 1), "2 done 1");
  EXPECT_THROW(script.push(0), InvalidArgument) << "it has no token";
}

TEST(FinishEpoch, AllBeginTheNextWhenAllLivingWorkersHaveFinished) {
  for (const Mode mode : kModes) {
    Script script({.workers = 3, .phases = {{0, mode}}, .staleness = 1});
    script.enter_all(3);
    script.leave(2);
    EXPECT_EQ(script.finish_epoch(0), "");
    EXPECT_EQ(script.finish_epoch(1), "0 begins 0, 1 begins 0") << to_string(mode);
  }
}

TEST(FinishEpoch, TheNextBeginsWhenTheLastWorkerThatHasNotFinishedFails) {
  for (const Mode mode : kModes) {
    Script script({.workers = 2, .phases = {{0, mode}}, .staleness = 1});
    script.enter_all(2);
    EXPECT_EQ(script.finish_epoch(0), "");
    EXPECT_EQ(script.fail(1), "0 begins 0") << to_string(mode);
  }
}

TEST(FinishEpoch, TheTokenOfTheLastActiveWorkerGoesToThoseWhoWait) {
  Script script({.workers = 2, .max_steps = 1});
  script.enter(0);
  EXPECT_EQ(script.enter(1), "");
  EXPECT_EQ(script.finish_epoch(0), "1 begins 0");
  EXPECT_EQ(script.finish_epoch(1), "0 begins 0") << "all have finished: one of them may begin";
  EXPECT_EQ(script.push(0), "apply 0#1 = 1, 0 applied done 1, 1 done 1");
}

TEST(Enter, AgainAsTheSameIncarnationRepeatsTheAnswer) {
  UpdatePolicy policy({.workers = 1});
  EXPECT_EQ(text_of(policy.enter(0, 3)), "0 begins 0");
  EXPECT_EQ(text_of(policy.enter(0, 3)), "0 begins 0");
  EXPECT_EQ(text_of(policy.push(0, {.sequence = 1})), "apply 0#1 = 1, 0 applied begins 1");
  EXPECT_EQ(text_of(policy.enter(0, 3)), "") << "it has asked something else since";
  EXPECT_EQ(text_of(policy.enter(0, 2)), "") << "an older incarnation";
  EXPECT_EQ(policy.living(), 1);
}

TEST(Enter, ANewIncarnationBeginsAnewAndGivesTheOldTokenBack) {
  UpdatePolicy policy({.workers = 1, .max_steps = 1});
  policy.enter(0, 0);
  EXPECT_EQ(text_of(policy.enter(0, 1)), "0 begins 0") << "there is one token only";
  EXPECT_EQ(policy.living(), 1);
  EXPECT_EQ(text_of(policy.push(0, {.sequence = 1})), "apply 0#1 = 1, 0 applied done 1");
}

TEST(Leave, GivesTheTokenBack) {
  Script script({.workers = 2, .max_steps = 1});
  script.enter_all(2);
  EXPECT_EQ(script.leave(0), "1 begins 0");
  EXPECT_EQ(script.policy.living(), 1);
  EXPECT_EQ(script.leave(0), "") << "it has left already";
  EXPECT_EQ(script.fail(0), "");
}

TEST(Requests, ThatMakeNoSenseAreRefusedAndChangeNothing) {
  Script script({.workers = 2, .phases = {{0, Mode::kSync}}});
  UpdatePolicy& policy = script.policy;
  EXPECT_THROW(policy.enter(2, 0), InvalidArgument);
  EXPECT_THROW(policy.enter(-1, 0), InvalidArgument);
  EXPECT_THROW(policy.push(0, {}), InvalidArgument) << "it has not entered";
  script.enter_all(2);
  EXPECT_THROW(policy.push(0, {.step = 1}), InvalidArgument) << "its token is for step 0";
  EXPECT_THROW(policy.push(0, {.version = 1}), InvalidArgument) << "there is no such version";
  EXPECT_THROW(policy.push(0, {.version = -1}), InvalidArgument);
  EXPECT_THROW(policy.push(0, {.total = 0}), InvalidArgument) << "nothing can be divided by it";
  for (const double weight : {0.0, -1.0, std::nan("")})
    EXPECT_THROW(policy.push(0, {.weight = weight}), InvalidArgument) << "weights are counted in it";
  script.push(0);
  EXPECT_THROW(policy.finish_epoch(0), InvalidArgument) << "it waits for its answer";
  EXPECT_THROW(policy.push(0, {.sequence = 2}), InvalidArgument);
  EXPECT_EQ(script.push(1), "apply 0#1 1#1 = 1, 0 applied begins 1, 1 applied begins 1");
}

std::string error_of(PolicyOptions options) {
  try {
    UpdatePolicy policy(std::move(options));
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(Options, ThatCannotWorkAreRefusedByName) {
  EXPECT_THAT(error_of({.workers = 0}), HasSubstr("workers is 0"));
  EXPECT_THAT(error_of({.aggregate = -1}), HasSubstr("--replicas-to-aggregate is -1"));
  EXPECT_THAT(error_of({.workers = 3, .init_tokens = 2}), HasSubstr("--init-tokens is 2, but 3 gradients"));
  EXPECT_THAT(error_of({.aggregate = 2, .init_tokens = 1}), HasSubstr("--init-tokens is 1, but 2 gradients"));
  EXPECT_THAT(error_of({.max_staleness = -2}), HasSubstr("--max-staleness is -2"));
  EXPECT_THAT(error_of({.staleness = -1}), HasSubstr("--staleness is -1"));
  EXPECT_THAT(error_of({.max_steps = -1}), HasSubstr("max_steps is -1"));
  EXPECT_THAT(error_of({.phases = {}}), HasSubstr("--switch"));
  EXPECT_EQ(error_of({.workers = 3, .aggregate = 2, .init_tokens = 2}), "");
}

TEST(Modes, AreReadAsTheyAreWritten) {
  for (const Mode mode : kModes) EXPECT_EQ(parse_mode(to_string(mode)), mode);
  EXPECT_THROW(parse_mode("sync"), InvalidArgument);
  EXPECT_THROW(parse_mode(""), InvalidArgument);
}

TEST(Phases, AreReadFromText) {
  EXPECT_EQ(parse_phases("0:ps-sync"), (std::vector<Phase>{{0, Mode::kSync}}));
  EXPECT_EQ(parse_phases("0:ps-sync,500:ps-async"),
            (std::vector<Phase>{{0, Mode::kSync}, {500, Mode::kAsync}}));
  for (const char* text :
       {"", "ps-sync", "1:ps-sync", "0:ps-sync,0:ps-async", "0:ps-sync,9:ps-ssp,8:ps-async", "0:ps-sync,",
        "0:sync", "x:ps-sync", "-1:ps-sync", "0:ps-sync,500", ":ps-sync"}) {
    EXPECT_THROW(parse_phases(text), InvalidArgument) << text;
  }
}

}  // namespace
}  // namespace muster::detail
