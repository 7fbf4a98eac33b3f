#include <map>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/ps/policy/policy_script_test.h"

namespace muster::detail {
namespace {

using testing::ElementsAre;
using testing::Pair;

PolicyOptions ssp(int workers, int64_t staleness) {
  return {.workers = workers, .phases = {{0, Mode::kSsp}}, .staleness = staleness};
}

TEST(Async, AppliesAGradientAsItComes) {
  Script script({.workers = 2});
  EXPECT_EQ(script.enter(0), "0 begins 0");
  EXPECT_EQ(script.enter(1), "1 begins 0");
  EXPECT_EQ(script.push(1, {.weight = 8, .total = 4, .lr = 0.5, .gradient_scale = 3, .loss = 2}),
            "apply 1#1 = 1, 1 applied begins 1");
  EXPECT_EQ(script.last.commands.at(0), (Command{.kind = Command::Kind::kApply,
                                                 .sources = {{1, 1, 1}},
                                                 .divisor = 0.5,
                                                 .lr = 0.5,
                                                 .gradient_scale = 3,
                                                 .version = 1,
                                                 .step = 1,
                                                 .asynchronous = 2}));
  EXPECT_EQ(script.last.answers.at(0).loss, 2);
  EXPECT_EQ(script.last.answers.at(0).total, 4);
  EXPECT_EQ(script.last.answers.at(0).version, 1);
  EXPECT_EQ(script.last.answers.at(0).mode, Mode::kAsync);
}

TEST(Async, AnUpdateSaysHowManyWorkersAreAtWork) {
  Script script({.workers = 3});
  const auto at_work = [&] { return script.last.commands.at(0).asynchronous; };
  script.enter(0);
  script.push(0);
  EXPECT_EQ(at_work(), 1);
  script.enter(1);
  script.enter(2);
  script.push(0);
  EXPECT_EQ(at_work(), 3);
  script.finish_epoch(1);
  script.push(0);
  EXPECT_EQ(at_work(), 2);
  script.fail(2);
  script.push(0);
  EXPECT_EQ(at_work(), 1);
}

TEST(Async, StalenessIsTheVersionNowLessTheOneThatWasRead) {
  Script script({.workers = 2});
  script.enter_all(2);
  for (int i = 0; i < 3; ++i) {
    script.push(0);
    EXPECT_EQ(script.last.answers.at(0).staleness, 0);
  }
  script.push(1);
  EXPECT_EQ(script.last.answers.at(0).staleness, 3);
  script.push(0);
  EXPECT_EQ(script.last.answers.at(0).staleness, 1);
  EXPECT_THAT(script.policy.counts().at(0).staleness, ElementsAre(Pair(0, 3), Pair(1, 1)));
  EXPECT_THAT(script.policy.counts().at(1).staleness, ElementsAre(Pair(3, 1)));
  EXPECT_EQ(script.policy.report(),
            "worker/0: 4 applied, 0 dropped, 0 skipped; staleness 0: 3, 1: 1\n"
            "worker/1: 1 applied, 0 dropped, 0 skipped; staleness 3: 1\n");
}

TEST(Async, AGradientMoreStaleThanAllowedIsDropped) {
  Script script({.workers = 3, .max_staleness = 1});
  script.enter_all(3);
  script.push(0);
  EXPECT_EQ(script.push(1), "apply 1#1 = 2, 1 applied begins 2") << "a staleness of 1 is allowed";
  EXPECT_EQ(script.push(2), "drop 2#1, 2 dropped begins 2");
  EXPECT_EQ(script.last.answers.at(0).staleness, 2);
  EXPECT_EQ(script.policy.counts().at(2).dropped, 1);
  EXPECT_THAT(script.policy.counts().at(2).staleness, ElementsAre(Pair(2, 1)));
  EXPECT_EQ(script.push(2), "apply 2#2 = 3, 2 applied begins 3") << "it has read the new version";
}

TEST(Async, DampingDividesTheRateByTheStaleness) {
  Script script({.workers = 4, .staleness_damping = true});
  script.enter_all(4);
  for (int worker = 0; worker < 4; ++worker) {
    script.push(worker, {.lr = 0.6});
    EXPECT_EQ(script.last.commands.at(0).lr, worker < 2 ? 0.6 : 0.6 / worker) << "staleness " << worker;
  }
}

TEST(Async, DampingIsInsteadOfDropping) {
  Script script({.workers = 4, .max_staleness = 2, .staleness_damping = true});
  script.enter_all(4);
  for (int worker = 0; worker < 4; ++worker) {
    script.push(worker, {.lr = 0.6});
    EXPECT_EQ(script.last.commands.at(0).lr, worker < 3 ? 0.6 : 0.6 / worker) << "staleness " << worker;
  }
}

TEST(Async, ASkippedGradientUsesUpItsTokenAndBringsNothing) {
  Script script({.workers = 1});
  script.enter(0);
  EXPECT_EQ(script.push(0, {.total = 0, .skip = true}), "drop 0#1, 0 skipped begins 0");
  EXPECT_EQ(script.policy.version(), 0);
  EXPECT_EQ(script.policy.counts().at(0).skipped, 1);
  EXPECT_TRUE(script.policy.counts().at(0).staleness.empty());
}

TEST(Async, TheGradientOfAFailedWorkerHasBeenAppliedAndItsTokenComesBack) {
  Script script({.workers = 2, .max_steps = 2});
  script.enter_all(2);
  EXPECT_EQ(script.push(0), "apply 0#1 = 1") << "worker 1 has the last token";
  EXPECT_EQ(script.fail(1), "0 applied begins 1");
  EXPECT_EQ(script.push(0), "apply 0#2 = 2, 0 applied done 2");
}

TEST(Ssp, AWorkerIsAtMostSoManyGradientsAhead) {
  Script script(ssp(2, 2));
  script.enter_all(2);
  EXPECT_EQ(script.push(0), "apply 0#1 = 1, 0 applied begins 1");
  EXPECT_EQ(script.push(0), "apply 0#2 = 2, 0 applied begins 2");
  EXPECT_EQ(script.push(0), "apply 0#3 = 3") << "three ahead: its gradient is applied, and it waits";
  EXPECT_EQ(script.push(1), "apply 1#1 = 4, 0 applied begins 4, 1 applied begins 4");
  EXPECT_EQ(script.last.answers.at(1).mode, Mode::kSsp);
}

TEST(Ssp, DroppedAndSkippedGradientsCountForTheClock) {
  Script script(ssp(2, 1));
  script.enter_all(2);
  script.push(0, {.skip = true});
  EXPECT_EQ(script.push(0, {.skip = true}), "drop 0#2");
  EXPECT_EQ(script.push(1, {.skip = true}), "drop 1#1, 0 skipped begins 0, 1 skipped begins 0");
}

TEST(Ssp, ForgetsTheClockOfAFailedWorker) {
  Script script(ssp(2, 1));
  script.enter_all(2);
  script.push(0);
  EXPECT_EQ(script.push(0), "apply 0#2 = 2");
  EXPECT_EQ(script.fail(1), "0 applied begins 2");
}

TEST(Ssp, ForgetsTheClockOfAWorkerThatHasFinishedTheEpoch) {
  Script script(ssp(2, 1));
  script.enter_all(2);
  script.push(0);
  EXPECT_EQ(script.push(0), "apply 0#2 = 2");
  EXPECT_EQ(script.finish_epoch(1), "0 applied begins 2");
  for (int i = 0; i < 5; ++i) script.push(0);
  EXPECT_EQ(script.finish_epoch(0), "0 begins 7, 1 begins 7") << "both at the same clock";
  EXPECT_EQ(script.push(1), "apply 1#1 = 8, 1 applied begins 8");
  EXPECT_EQ(script.push(1), "apply 1#2 = 9");
}

TEST(Ssp, NobodyIsFartherAheadOfAWorkerThatIsStillToCome) {
  Script script(ssp(3, 1));
  script.enter_all(2);
  script.push(0);
  EXPECT_EQ(script.push(0), "apply 0#2 = 2") << "two ahead of worker 2";
  script.push(1);
  EXPECT_EQ(script.enter(2), "2 begins 3");
  EXPECT_EQ(script.push(2), "apply 2#1 = 4, 0 applied begins 4, 2 applied begins 4");
}

TEST(Ssp, AWorkerThatDiesBeforeItHasComeIsNotWaitedFor) {
  Script script(ssp(2, 1));
  script.enter(0);
  script.push(0);
  EXPECT_EQ(script.push(0), "apply 0#2 = 2");
  EXPECT_EQ(script.fail(1), "0 applied begins 2");
}

TEST(Ssp, AWorkerThatComesAgainGetsTheClockOfTheSlowestLivingOne) {
  Script script(ssp(3, 1));
  script.enter_all(3);
  script.fail(2);
  script.push(0);
  script.push(1);
  script.push(0);  // clocks 2 and 1
  EXPECT_EQ(script.enter(2, 1), "2 begins 3");
  EXPECT_EQ(script.push(0), "apply 0#3 = 4") << "two ahead of worker 1";
  EXPECT_EQ(script.push(1), "apply 1#2 = 5, 1 applied begins 5") << "worker 2 has clock 1: 0 waits for it";
  EXPECT_EQ(script.push(2), "apply 2#1 = 6, 0 applied begins 6, 2 applied begins 6");
}

// Two policies that random workers ask the same.
class Twins {
 public:
  Twins(const PolicyOptions& one, const PolicyOptions& other, uint32_t seed)
      : one_(one), other_(other), generator_(seed), workers_(one.workers) {
    for (int worker = 0; worker < workers_; ++worker)
      compare(worker, [&](Script& script) { script.enter(worker); });
  }

  void run(int requests) {
    for (int i = 0; i < requests && !::testing::Test::HasFailure(); ++i) request();
  }

  const UpdatePolicy& policy() const { return one_.policy; }

 private:
  void request() {
    const int worker = static_cast<int>(generator_() % static_cast<uint32_t>(workers_));
    const auto kind = generator_() % 20;
    if (failed_[worker]) {
      if (kind < 10) return;
      const int incarnation = ++incarnations_[worker];
      failed_[worker] = false;
      return compare(worker, [&](Script& script) { script.enter(worker, incarnation); });
    }
    if (kind == 0) {
      failed_[worker] = true;
      return compare(worker, [&](Script& script) { script.fail(worker); });
    }
    if (!one_.has_token(worker)) return;
    if (kind < 3) return compare(worker, [&](Script& script) { script.finish_epoch(worker); });
    const Push push = {.total = 1.0 + kind, .lr = 0.1, .loss = 0.5, .skip = kind == 3};
    compare(worker, [&](Script& script) { script.push(worker, push); });
  }

  template <typename Ask>
  void compare(int worker, const Ask& ask) {
    ask(one_);
    ask(other_);
    EXPECT_EQ(text_of(one_.last), text_of(other_.last)) << "worker " << worker;
    EXPECT_EQ(one_.last.commands, other_.last.commands);
  }

  const QuietLog quiet_;
  Script one_;
  Script other_;
  std::mt19937 generator_;
  const int workers_;
  std::map<int, bool> failed_;
  std::map<int, int> incarnations_;
};

TEST(Ssp, WithAStalenessOfZeroItDecidesAsSync) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    Twins pair(ssp(3, 0), {.workers = 3, .phases = {{0, Mode::kSync}}}, seed);
    pair.run(1000);
    EXPECT_GT(pair.policy().step(), 50);
  }
}

TEST(Ssp, WithAHugeStalenessItDecidesAsAsync) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    Twins pair(ssp(3, 1'000'000'000), {.workers = 3}, seed);
    pair.run(1000);
    EXPECT_GT(pair.policy().step(), 50);
  }
}

TEST(Async, ATokenThatIsGivenBackGoesToWhoeverWaits) {
  Script script({.workers = 2, .max_steps = 1});
  EXPECT_EQ(script.enter(0), "0 begins 0");
  EXPECT_EQ(script.enter(1), "");
  EXPECT_EQ(script.needs(), "1 needs a gradient of 1 of 0");
  EXPECT_EQ(script.away(0), "1 begins 0");
  script.back(0);
  EXPECT_EQ(script.resume(0), "");
  EXPECT_EQ(script.push(1), "apply 1#1 = 1, 0 done 1, 1 applied done 1");
}

TEST(Ssp, NobodyWaitsForASlowWorkerThatIsAway) {
  Script script(ssp(2, 1));
  script.enter_all(2);
  script.push(0);
  EXPECT_EQ(script.push(0), "apply 0#2 = 2");
  EXPECT_EQ(script.needs(), "0 needs a gradient of 1");
  EXPECT_EQ(script.away(1), "0 applied begins 2");
}

}  // namespace
}  // namespace muster::detail
