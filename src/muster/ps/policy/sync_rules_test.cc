#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/ps/policy/policy_script_test.h"

namespace muster::detail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

PolicyOptions sync(int workers, int aggregate = 0) {
  return {.workers = workers, .phases = {{0, Mode::kSync}}, .aggregate = aggregate};
}

class CapturedLog {
 public:
  CapturedLog() {
    set_log_sink([this](std::string_view line) { lines.emplace_back(line); });
  }
  ~CapturedLog() { set_log_sink({}); }

  std::vector<std::string> lines;
};

TEST(Sync, AveragesOneGradientOfEachWorkerAndTakesOneStep) {
  Script script(sync(2));
  EXPECT_EQ(script.enter(0), "0 begins 0");
  EXPECT_EQ(script.enter(1), "1 begins 0");
  EXPECT_EQ(script.push(1), "");
  EXPECT_EQ(script.push(0), "apply 0#1 1#1 = 1, 1 applied begins 1, 0 applied begins 1");
  EXPECT_EQ(script.policy.step(), 1);
  EXPECT_EQ(script.policy.version(), 1);
}

TEST(Sync, WorkersThatHaveNotEnteredYetAreWaitedFor) {
  Script script(sync(3, 2));
  EXPECT_EQ(script.enter(0), "0 begins 0");
  EXPECT_EQ(script.push(0), "") << "not even a token is left: the others' are kept for them";
  EXPECT_EQ(script.enter(2), "2 begins 0");
  EXPECT_EQ(script.push(2), "apply 0#1 2#1 = 1, 0 applied begins 1, 2 applied begins 1");
}

TEST(Sync, AWorkerThatFailsBeforeItEnteredIsNotWaitedFor) {
  const CapturedLog log;
  Script script(sync(2));
  script.enter(0);
  script.push(0);
  EXPECT_EQ(script.fail(1), "apply 0#1 = 1, 0 applied begins 1");
  EXPECT_THAT(log.lines, ElementsAre(HasSubstr("worker/1 has failed: averaging 1 gradient instead of 2")));
  EXPECT_EQ(script.enter(1), "1 begins 1");
  EXPECT_THAT(log.lines.back(), HasSubstr("worker/1 is back: averaging 2 gradients instead of 1"));
  EXPECT_EQ(script.push(0), "");
}

TEST(Sync, TheAverageIsWeightedByTheTotals) {
  Script script(sync(2));
  script.enter_all(2);
  script.push(0, {.weight = 30, .total = 30, .lr = 0.5, .gradient_scale = 2, .loss = 1});
  script.push(1, {.weight = 10, .total = 10, .lr = 0.25, .loss = 5});
  EXPECT_EQ(script.last.commands.at(0), (Command{.kind = Command::Kind::kApply,
                                                 .sources = {{0, 1, 1}, {1, 1, 1.0 / 3}},
                                                 .divisor = 40.0 / 30,
                                                 .lr = 0.5,
                                                 .gradient_scale = 2,
                                                 .version = 1,
                                                 .step = 1}));
  for (const Answer& answer : script.last.answers) {
    EXPECT_EQ(answer.loss, 2);
    EXPECT_EQ(answer.total, 40);
    EXPECT_EQ(answer.staleness, 0);
    EXPECT_EQ(answer.version, 1);
    EXPECT_EQ(answer.mode, Mode::kSync);
  }
}

TEST(Sync, WeightsOfEqualBatchesAreOne) {
  Script script(sync(2));
  script.enter_all(2);
  for (uint64_t step = 1; step <= 2; ++step) {
    const double samples = step == 1 ? 64 : 48;
    script.push(1, {.weight = samples, .total = samples});
    script.push(0, {.weight = samples, .total = samples});
    EXPECT_THAT(script.last.commands.at(0).sources,
                ElementsAre(GradientSource{0, step, 1}, GradientSource{1, step, 1}));
    EXPECT_EQ(script.last.commands.at(0).divisor, 2);
  }
}

TEST(Sync, WhoIsTheFirstToComeDoesNotChangeHowSumsAreRounded) {
  for (const int first : {0, 1}) {
    Script script(sync(2));
    script.enter_all(2);
    for (const int worker : {first, 1 - first}) {
      const double samples = worker == 0 ? 7 : 3;
      script.push(worker, {.weight = samples, .total = samples});
    }
    EXPECT_THAT(script.last.commands.at(0).sources,
                ElementsAre(GradientSource{0, 1, 1}, GradientSource{1, 1, 3.0 / 7}));
    EXPECT_EQ(script.last.commands.at(0).divisor, 10.0 / 7);
  }
}

TEST(Sync, WhichWorkersTheGradientsComeFromDoesNotMatter) {
  Script script(sync(3, 2));
  script.enter_all(3);
  EXPECT_EQ(script.push(2), "");
  EXPECT_EQ(script.push(1), "apply 1#1 2#1 = 1, 2 applied begins 1, 1 applied begins 1");
}

TEST(Sync, AWorkerGivesSeveralGradientsWhenMoreAreNeededThanThereAreWorkers) {
  Script script(sync(1, 3));
  EXPECT_EQ(script.enter(0), "0 begins 0");
  EXPECT_EQ(script.push(0, {.weight = 2, .total = 2}), "accumulate 0#1, 0 applied begins 0");
  EXPECT_EQ(script.push(0), "accumulate 0#2, 0 applied begins 0");
  EXPECT_EQ(script.last.commands.at(0).sources.at(0).weight, 0.5);
  EXPECT_EQ(script.push(0), "apply 0#3 = 1, 0 applied begins 1");
  EXPECT_EQ(script.last.commands.at(0).divisor, 2) << "what was accumulated counts";
  EXPECT_EQ(script.policy.counts().at(0).applied, 3);
}

TEST(Sync, AWorkerThatGoesOnBeforeTheUpdateHasItsGradientAccumulatedFirst) {
  Script script(sync(2, 3));
  script.enter_all(2);
  EXPECT_EQ(script.push(0, {.total = 4, .loss = 7}), "accumulate 0#1, 0 applied begins 0");
  EXPECT_EQ(script.last.answers.at(0).loss, 7) << "its own: the update is yet to come";
  EXPECT_EQ(script.last.answers.at(0).total, 4);
  EXPECT_EQ(script.push(1), "");
  EXPECT_EQ(script.push(0), "apply 0#2 1#1 = 1, 1 applied begins 1, 0 applied begins 1");
}

TEST(Sync, AGradientForAnOlderStepIsDroppedAndCounted) {
  Script script(sync(3, 2));
  script.enter_all(3);
  script.push(0);
  script.push(1);
  EXPECT_EQ(script.push(2), "drop 2#1, 2 dropped begins 1");
  EXPECT_EQ(script.last.answers.at(0).staleness, 1);
  EXPECT_EQ(script.policy.step(), 1);
  EXPECT_EQ(script.policy.counts().at(2).dropped, 1);
  EXPECT_EQ(script.policy.counts().at(2).applied, 0);
}

TEST(Sync, FewerGradientsThanWorkersGiveBackupWorkers) {
  Script script(sync(3, 2));
  script.enter_all(3);
  for (int step = 1; step <= 5; ++step) {  // worker 2 computes for step 0 all the while
    while (script.policy.step() < step) {
      script.push(0);
      if (script.policy.step() < step) script.push(1);
    }
  }
  EXPECT_EQ(script.policy.step(), 5);
  EXPECT_EQ(script.push(2), "drop 2#1, 2 dropped begins 5");
}

TEST(Sync, AsManyTokensAsWorkersCarryTheNewStep) {
  Script script(sync(3, 2));
  script.enter_all(3);
  script.push(0);
  script.push(1);  // both hold a token for step 1 now
  EXPECT_EQ(script.push(0), "accumulate 0#2, 0 applied begins 1") << "the third token";
  EXPECT_EQ(script.push(2), "drop 2#1") << "there is no fourth: it waits";
  EXPECT_EQ(script.push(1), "apply 1#2 = 2, 2 dropped begins 2, 1 applied begins 2");
}

TEST(Sync, AsManyTokensAsGradientsCarryTheNewStepWhenTheseAreMore) {
  Script script(sync(2, 4));
  script.enter_all(2);
  EXPECT_EQ(script.push(0), "accumulate 0#1, 0 applied begins 0");
  EXPECT_EQ(script.push(0), "accumulate 0#2, 0 applied begins 0");
  EXPECT_EQ(script.push(0), "") << "the fourth token is worker 1's";
  EXPECT_EQ(script.push(1), "apply 0#3 1#1 = 1, 0 applied begins 1, 1 applied begins 1");
}

TEST(Sync, OlderTokensThatNobodyTookAreGone) {
  PolicyOptions options = sync(2);
  options.init_tokens = 8;
  Script script(options);
  script.enter_all(2);
  EXPECT_EQ(script.push(0), "accumulate 0#1, 0 applied begins 0");
  EXPECT_EQ(script.push(1), "apply 1#1 = 1, 1 applied begins 1");
  EXPECT_EQ(script.push(1), "accumulate 1#2, 1 applied begins 1") << "the second token of step 1";
  EXPECT_EQ(script.push(0), "drop 0#2") << "no token is left";
  EXPECT_EQ(script.push(1), "apply 1#3 = 2, 0 dropped begins 2, 1 applied begins 2");
}

TEST(Sync, InitTokensCanBeFewerThanWorkers) {
  PolicyOptions options = sync(3, 1);
  options.init_tokens = 1;
  Script script(options);
  script.enter_all(3);
  EXPECT_THAT(script.last.answers, IsEmpty());
  EXPECT_EQ(script.push(0), "apply 0#1 = 1, 1 begins 1, 2 begins 1, 0 applied begins 1");
}

TEST(Sync, AWorkerWithoutATokenWaits) {
  PolicyOptions options = sync(2, 1);
  options.init_tokens = 1;
  Script script(options);
  EXPECT_EQ(script.enter(0), "0 begins 0");
  EXPECT_EQ(script.enter(1), "");
  EXPECT_EQ(script.push(0), "apply 0#1 = 1, 1 begins 1, 0 applied begins 1");
}

TEST(Sync, AFailedWorkersTokenComesBackToTheOthersWhenMoreAreNeededThanWorkers) {
  Script script(sync(2, 3));
  script.enter_all(2);
  script.push(0);
  EXPECT_EQ(script.push(0), "") << "the third token is worker 1's";
  EXPECT_EQ(script.fail(1), "accumulate 0#2, 0 applied begins 0");
  EXPECT_EQ(script.push(0), "apply 0#3 = 1, 0 applied begins 1");
}

TEST(Sync, AFailedWorkersTokenIsKeptForItWhenTheOthersAreEnough) {
  Script script(sync(3));
  script.enter_all(3);
  EXPECT_EQ(script.push(0), "");
  EXPECT_EQ(script.fail(2), "") << "worker 0 waits for worker 1: another gradient of it would be late";
  EXPECT_EQ(script.enter(2, 1), "2 begins 0");
  EXPECT_EQ(script.push(1), "");
  EXPECT_EQ(script.push(2),
            "apply 0#1 1#1 2#1 = 1, 0 applied begins 1, 1 applied begins 1, 2 applied begins 1");
}

TEST(Sync, WhatIsCompleteWithoutTheFailedWorkerIsAppliedAtOnce) {
  const CapturedLog log;
  Script script(sync(2));
  script.enter_all(2);
  script.push(0);
  EXPECT_EQ(script.fail(1), "apply 0#1 = 1, 0 applied begins 1");
  EXPECT_THAT(log.lines, ElementsAre(HasSubstr("worker/1 has failed: averaging 1 gradient instead of 2")));
  EXPECT_EQ(log.lines.front().front(), 'W');
  EXPECT_EQ(script.push(0), "apply 0#2 = 2, 0 applied begins 2");
}

TEST(Sync, ARestartedWorkerEntersAtTheCurrentStepAndCountsAgain) {
  const CapturedLog log;
  Script script(sync(2));
  script.enter_all(2);
  script.fail(1);
  script.push(0);
  script.push(0);
  EXPECT_EQ(script.enter(1, 1), "1 begins 2");
  EXPECT_THAT(log.lines.back(), HasSubstr("worker/1 is back: averaging 2 gradients instead of 1"));
  EXPECT_EQ(log.lines.back().front(), 'I');
  EXPECT_EQ(script.push(0), "");
  EXPECT_EQ(script.push(1), "apply 0#3 1#1 = 3, 0 applied begins 3, 1 applied begins 3");
}

TEST(Sync, NothingIsSaidWhenEnoughWorkersAreLeft) {
  const CapturedLog log;
  Script script(sync(3, 2));
  script.enter_all(3);
  script.fail(2);
  script.enter(2, 1);
  EXPECT_THAT(log.lines, IsEmpty());
  script.leave(2);
  script.fail(1);
  EXPECT_THAT(log.lines, ElementsAre(HasSubstr("averaging 1 gradient instead of 2")));
}

TEST(Sync, TheGradientOfAFailedWorkerStillCounts) {
  Script script(sync(3));
  script.enter_all(3);
  script.push(0);
  EXPECT_EQ(script.fail(0), "accumulate 0#1") << "its memory may be gone soon";
  EXPECT_EQ(script.push(1), "apply 1#1 = 1, 1 applied begins 1") << "two are left";
  EXPECT_EQ(script.last.commands.at(0).divisor, 2);
  EXPECT_EQ(script.policy.counts().at(0).applied, 1);
}

TEST(Sync, ANewIncarnationDoesNotMixWithTheGradientOfTheOldOne) {
  Script script(sync(3));
  script.enter_all(3);
  script.push(0);
  EXPECT_EQ(script.enter(0, 1), "accumulate 0#1")
      << "its gradient used up its token: it waits for the next step";
  script.push(1);
  EXPECT_EQ(script.push(2), "apply 1#1 2#1 = 1, 0 begins 1, 1 applied begins 1, 2 applied begins 1");
  EXPECT_EQ(script.last.commands.at(0).divisor, 3);
}

TEST(Sync, GradientsThatAreTooFewForAnUpdateAtTheEndAreToldOf) {
  const CapturedLog log;
  Script script(sync(2, 5));
  script.enter_all(2);
  for (int i = 0; i < 3; ++i) {
    script.push(0);
    script.push(1);
  }
  EXPECT_EQ(script.policy.step(), 1);
  EXPECT_THAT(script.policy.report(), Not(HasSubstr("too few")));
  script.leave(0);
  EXPECT_THAT(log.lines, IsEmpty());
  script.leave(1);
  EXPECT_THAT(log.lines, ElementsAre(HasSubstr(
                             "all workers have ended, and only 1 of the 5 gradients that make update 2 "
                             "(--replicas-to-aggregate) have come: what it would change is lost")));
  EXPECT_THAT(script.policy.report(), HasSubstr("worker/1: 2 applied, 0 dropped, 0 skipped, 1 too few"));
}

TEST(Sync, AWorkerThatHasFinishedTheEpochIsNotWaitedFor) {
  Script script(sync(3));
  script.enter_all(3);
  EXPECT_EQ(script.finish_epoch(2), "");
  EXPECT_EQ(script.push(0), "");
  EXPECT_EQ(script.push(1), "apply 0#1 1#1 = 1, 0 applied begins 1, 1 applied begins 1");
  EXPECT_EQ(script.push(0), "");
  EXPECT_EQ(script.finish_epoch(1), "apply 0#2 = 2, 0 applied begins 2");
  EXPECT_EQ(script.finish_epoch(0), "0 begins 2, 1 begins 2, 2 begins 2") << "all begin again";
  EXPECT_EQ(script.push(0), "");
}

TEST(Sync, ASkippedGradientCountsButHasNoWeight) {
  Script script(sync(2));
  script.enter_all(2);
  EXPECT_EQ(script.push(0, {.weight = 0, .total = 9, .lr = 9, .skip = true}), "drop 0#1");
  EXPECT_EQ(script.push(1, {.weight = 6, .total = 18, .lr = 0.5, .loss = 2}),
            "apply 1#1 = 1, 0 skipped begins 1, 1 applied begins 1");
  EXPECT_EQ(script.last.commands.at(0).divisor, 3) << "in units of the first that counts";
  EXPECT_THAT(script.last.commands.at(0).sources, ElementsAre(GradientSource{1, 1, 1}));
  EXPECT_EQ(script.last.commands.at(0).lr, 0.5);
  EXPECT_EQ(script.last.answers.at(1).loss, 2);
  EXPECT_EQ(script.policy.counts().at(0).skipped, 1);
  EXPECT_EQ(script.policy.counts().at(0).applied, 0);
}

TEST(Sync, WhenAllGradientsAreSkippedThereIsAStepButNoUpdate) {
  Script script(sync(2));
  script.enter_all(2);
  script.push(0, {.skip = true});
  EXPECT_EQ(script.push(1, {.skip = true}), "drop 1#1, drop = 1, 0 skipped begins 1, 1 skipped begins 1");
  EXPECT_EQ(script.policy.step(), 1);
  EXPECT_EQ(script.policy.version(), 0);
  script.push(0);
  script.push(1);
  EXPECT_EQ(script.last.commands.at(0).version, 1);
  EXPECT_EQ(script.last.commands.at(0).step, 2);
}

TEST(Local, AnUpdateStandsForTheStepsThatItsGradientsStandFor) {
  Script script({.workers = 2, .phases = {{0, Mode::kLocal}}});
  script.enter_all(2);
  script.push(0, {.advance = 16});
  EXPECT_EQ(script.push(1, {.advance = 16}), "apply 0#1 1#1 = 16, 0 applied begins 16, 1 applied begins 16");
  EXPECT_EQ(script.policy.version(), 1);
  script.push(0, {.advance = 3});
  script.push(1, {.advance = 5});
  EXPECT_EQ(script.policy.step(), 21) << "the one that went farthest";
}

TEST(Local, NeedsAllWorkersWhateverSyncAggregates) {
  Script script({.workers = 2, .phases = {{0, Mode::kLocal}}, .aggregate = 1, .init_tokens = 9});
  script.enter_all(2);
  EXPECT_EQ(script.push(0), "");
}

TEST(Local, TheStepDoesNotGoBeyondTheEnd) {
  Script script({.workers = 1, .phases = {{0, Mode::kLocal}}, .max_steps = 10});
  script.enter(0);
  script.push(0, {.advance = 8});
  EXPECT_EQ(script.push(0, {.advance = std::numeric_limits<int64_t>::max()}),
            "apply 0#2 = 10, 0 applied done 10");
}

TEST(Sync, OtherModesIgnoreHowManyStepsAGradientStandsFor) {
  Script script(sync(1));
  script.enter(0);
  EXPECT_EQ(script.push(0, {.advance = 8}), "apply 0#1 = 1, 0 applied begins 1");
}

TEST(Sync, NobodyWaitsForAWorkerThatIsAway) {
  Script script({.workers = 2, .phases = {{0, Mode::kSync}}});
  script.enter_all(2);
  EXPECT_EQ(script.push(0), "");
  EXPECT_EQ(script.needs(), "0 needs a gradient of 1 of 1");
  EXPECT_EQ(script.away(1), "apply 0#1 = 1, 0 applied begins 1");
  EXPECT_EQ(script.push(0), "apply 0#2 = 2, 0 applied begins 2");
  EXPECT_EQ(script.finish_epoch(0), "0 begins 2");  // the other has nothing to bring either
}

TEST(Sync, AWorkerThatIsBackIsCountedOnBeforeItResumes) {
  Script script({.workers = 2, .phases = {{0, Mode::kSync}}});
  script.enter_all(2);
  script.away(0);
  script.away(1);
  EXPECT_EQ(script.back(0), "");
  EXPECT_EQ(script.back(1), "");
  EXPECT_EQ(script.resume(0), "0 begins 0");
  EXPECT_EQ(script.push(0), "");  // not without the other
  EXPECT_EQ(script.resume(1), "1 begins 0");
  EXPECT_EQ(script.push(1), "apply 0#1 1#1 = 1, 0 applied begins 1, 1 applied begins 1");
}

TEST(Sync, OneThatFinishedTheEpochGoesOnWhenTheOtherIsAway) {
  Script script({.workers = 2, .phases = {{0, Mode::kSync}}});
  script.enter_all(2);
  EXPECT_EQ(script.finish_epoch(0), "");
  EXPECT_EQ(script.needs(), "0 needs the end of the epoch of 1");
  EXPECT_EQ(script.away(1), "0 begins 0");
}

TEST(Sync, AwayMakesSenseOnlyBetweenSteps) {
  Script script({.workers = 2, .phases = {{0, Mode::kSync}}});
  script.enter_all(2);
  script.push(0);
  EXPECT_THROW(script.away(0), InvalidArgument);
  EXPECT_THROW(script.back(1), InvalidArgument);
  EXPECT_THROW(script.resume(1), InvalidArgument);
}

TEST(Sync, SomeOfManyAreNeeded) {
  Script script({.workers = 4, .phases = {{0, Mode::kSync}}, .aggregate = 3});
  script.enter_all(4);
  script.push(2);
  EXPECT_EQ(script.needs(), "2 needs a gradient of 2 of 0 1 3");
}

}  // namespace
}  // namespace muster::detail
