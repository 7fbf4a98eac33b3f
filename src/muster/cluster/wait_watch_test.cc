#include "muster/cluster/wait_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Presence = WaitWatch::Task::Presence;

struct SaidWait {
  std::string what = {};
  std::vector<std::string> tasks = {};
  int enough = 0;
  std::string inside = {};
  std::string of = {};
  std::string subject = {};
  std::string meeting = {};
  std::string barrier = {};
  std::string key = {};
  proto::Wait::Limit limit = proto::Wait::NONE;
  bool main = true;
  uint64_t id = 1;
  bool looks = true;  // again and again
};

// Tasks that say the same each time they are heard, and a clock.
class Watched : public ::testing::Test {
 protected:
  void task(const std::string& name, std::vector<SaidWait> waits = {}, const std::string& doing = "") {
    view.tasks[name] = {.presence = Presence::kHere, .description = name + " (host h)", .gone = ""};
    said[name] = {std::move(waits), doing};
  }

  // Looks every 250 ms, as the coordinator does; gives what was found last.
  void wait(std::chrono::milliseconds time) {
    for (auto passed = 0ms; passed < time; passed += 250ms) {
      now += 250ms;
      ++looks;
      for (const auto& [name, what] : said) watch.heard(name, heartbeat_of(what.first, what.second));
      const auto findings = watch.look(view, now);
      warnings.insert(warnings.end(), findings.warnings.begin(), findings.warnings.end());
      if (error.empty()) error = findings.error;
    }
  }

  proto::Heartbeat heartbeat_of(const std::vector<SaidWait>& waits, const std::string& doing) const {
    proto::Heartbeat heartbeat;
    heartbeat.set_look(hears ? watch.looks() : 0);
    heartbeat.set_doing(doing);
    for (const auto& wait : waits) {
      auto& added = *heartbeat.add_waits();
      added.set_id(wait.id);
      added.set_what(wait.what);
      for (const auto& other : wait.tasks) added.add_tasks(other);
      added.set_enough(wait.enough);
      added.set_inside(wait.inside);
      added.set_of(wait.of);
      added.set_subject(wait.subject);
      added.set_meeting(wait.meeting);
      added.set_barrier(wait.barrier);
      added.set_key(wait.key);
      added.set_limit(wait.limit);
      added.set_main(wait.main);
      added.set_looks(wait.looks ? looks : 1);
      added.set_age_ms(1000);
    }
    return heartbeat;
  }

  WaitWatch watch{{.stall_warning = 10s, .timeout = 60s}};
  WaitWatch::View view = {
      .tasks = {},
      .missing = [this](const std::string& name,
                        const std::string& barrier) -> std::optional<std::vector<std::string>> {
        const auto found = barriers.find({name, barrier});
        if (found == barriers.end()) return std::nullopt;
        return found->second;
      },
      .waits_for_key =
          [this](const std::string& name, const std::string& key) {
            return keys.contains({name, key});
          }};
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> barriers;  // who is missing
  std::set<std::pair<std::string, std::string>> keys;
  std::map<std::string, std::pair<std::vector<SaidWait>, std::string>> said;
  std::vector<std::string> warnings;
  std::string error;
  WaitWatch::Time now = WaitWatch::Time() + 1h;
  uint64_t looks = 0;
  bool hears = true;  // what the coordinator tells tasks
};

TEST_F(Watched, AStragglerIsNamedOnce) {
  task("worker/0", {{.tasks = {"worker/1"}, .inside = "step 81"}});
  task("worker/1", {}, "in step 81 since 12.0 s");
  task("worker/2", {{.tasks = {"worker/1"}, .inside = "step 81"}});
  wait(8s);
  EXPECT_THAT(warnings, IsEmpty());
  wait(30s);
  EXPECT_EQ(error, "");
  EXPECT_THAT(warnings,
              ElementsAre(AllOf(HasSubstr("worker/0 and worker/2 wait in step 81 for worker/1 since 10"),
                                HasSubstr("worker/1 (host h) waits for nobody, and is in step 81"))));
}

// It counts its waits from 1 again, and may be heard before anybody has looked.
TEST_F(Watched, AWaitOfATaskThatWasStartedAgainIsANewOne) {
  task("worker/0", {{.tasks = {"worker/1"}, .inside = "step 81"}});
  task("worker/1");
  wait(50s);
  ASSERT_EQ(warnings.size(), 1U);
  watch.forget("worker/0");
  wait(8s);
  EXPECT_EQ(warnings.size(), 1U);
  wait(20s);
  EXPECT_EQ(error, "") << "the first waited for 50 s, this one for 28 s";
  EXPECT_EQ(warnings.size(), 2U);
}

TEST_F(Watched, AWaitBeyondTheTimeoutIsAnError) {
  task("worker/0", {{.tasks = {"worker/1"}, .inside = "step 81"}});
  task("worker/1", {}, "in step 81 since 12.0 s");
  wait(58s);
  EXPECT_EQ(error, "");
  wait(4s);
  EXPECT_THAT(error,
              AllOf(HasSubstr("worker/0 has waited in step 81 for worker/1"),
                    HasSubstr("--collective-timeout"), HasSubstr("worker/1 (host h) waits for nobody")));
}

TEST_F(Watched, AWaitWithALimitOfItsOwnIsLeftToIt) {
  task("worker/0", {{.what = "a", .tasks = {"worker/1"}, .limit = proto::Wait::OWN}});
  task("worker/1");
  wait(100s);
  EXPECT_EQ(error, "");
}

TEST_F(Watched, TwoBarriersAreADeadlock) {
  task("worker/0", {{.what = "barrier 'a'", .barrier = "a"}});
  task("worker/1", {{.what = "barrier 'b'", .barrier = "b"}});
  barriers[{"worker/0", "a"}] = {"worker/1"};
  barriers[{"worker/1", "b"}] = {"worker/0"};
  wait(8s);
  EXPECT_EQ(error, "");
  wait(3s);
  EXPECT_THAT(error, AllOf(HasSubstr("deadlock: worker/0 waits in barrier 'a' for worker/1 (since "),
                           HasSubstr("and worker/1 waits in barrier 'b' for worker/0"),
                           HasSubstr("the same barriers in the same order")));
  EXPECT_THAT(warnings, IsEmpty());
}

TEST_F(Watched, ABarrierThatHasCompletedHoldsNobodyUp) {
  task("worker/0", {{.what = "barrier 'a'", .barrier = "a"}});  // the answer is on its way
  task("worker/1", {{.what = "barrier 'b'", .barrier = "b"}});
  barriers[{"worker/1", "b"}] = {"worker/0"};
  wait(30s);
  EXPECT_EQ(error, "");
}

TEST_F(Watched, AKeyThatOnlyAWaiterCouldPut) {
  task("worker/0", {{.what = "get of 'k'", .key = "k"}});
  task("worker/1", {{.what = "barrier 'b'", .barrier = "b"}});
  task("ps/0", {{.what = "work", .tasks = {"worker/0", "worker/1"}, .limit = proto::Wait::FOREVER}});
  keys.insert({"worker/0", "k"});
  barriers[{"worker/1", "b"}] = {"worker/0"};
  wait(12s);
  EXPECT_THAT(error, AllOf(HasSubstr("worker/0 waits in get of 'k' for somebody to put it"),
                           HasSubstr("worker/1 waits in barrier 'b' for worker/0"),
                           HasSubstr("own was about to put 'k', --stall-warning must be longer")));
}

TEST_F(Watched, AKeyThatSomebodyMayStillPutIsWorthAWarning) {
  task("worker/0", {{.what = "get of 'k'", .key = "k"}});
  task("worker/1");
  keys.insert({"worker/0", "k"});
  wait(12s);
  EXPECT_EQ(error, "");
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("worker/0 waits in get of 'k' for somebody to put it since ")));
}

TEST_F(Watched, EvaluateAgainstAStepWithServers) {
  task("worker/0", {{.what = "gather 'muster/sums/1'", .inside = "evaluate()", .barrier = "muster/sums/1"}});
  task("worker/1", {{.what = "push to ps/0", .tasks = {"ps/0"}, .inside = "step 81", .subject = "model 1"}});
  task("ps/0",
       {{.what = "a gradient", .tasks = {"worker/0"}, .of = "worker/1", .subject = "model 1"},
        {.what = "the end of the epoch", .tasks = {"worker/2"}, .of = "worker/1", .subject = "model 2"},
        {.what = "work", .limit = proto::Wait::FOREVER, .id = 2}});
  barriers[{"worker/0", "muster/sums/1"}] = {"worker/1"};
  wait(12s);
  EXPECT_THAT(error,
              AllOf(HasSubstr("worker/0 waits in evaluate() for worker/1"),
                    HasSubstr("worker/1 waits in step 81 for a gradient of worker/0"),
                    HasSubstr("is finish_epoch() missing before evaluate(), or is it not called by all")));
}

TEST_F(Watched, StepsOfDifferentModelsAreSaidToBe) {
  task("worker/0", {{.what = "push to ps/0", .tasks = {"ps/0"}, .inside = "step 1", .subject = "model 1"}});
  task("worker/1", {{.what = "push to ps/0", .tasks = {"ps/0"}, .inside = "step 1", .subject = "model 2"}});
  task("ps/0", {{.what = "a gradient", .tasks = {"worker/1"}, .of = "worker/0", .subject = "model 1"},
                {.what = "a gradient", .tasks = {"worker/0"}, .of = "worker/1", .subject = "model 2"},
                {.what = "work", .limit = proto::Wait::FOREVER, .id = 2}});
  wait(12s);
  EXPECT_THAT(error, HasSubstr("these are steps of different Trainers, of model 1 and model 2"));
}

TEST_F(Watched, AWorkerThatRunsOnWhenOthersHaveEndedIsNamedOnce) {
  task("worker/0");
  task("worker/1");
  wait(30s);
  EXPECT_THAT(warnings, IsEmpty());
  view.tasks["worker/0"].presence = Presence::kGone;
  said.erase("worker/0");
  wait(9s);
  EXPECT_THAT(warnings, IsEmpty());
  wait(30s);
  EXPECT_THAT(warnings,
              ElementsAre("worker/0 has ended; worker/1 (host h) still runs, and waits for nobody"));
  EXPECT_EQ(error, "");
}

TEST_F(Watched, ABarrierOfTheProgramsIsNamedWithTheCallThatItIsIn) {
  task("worker/0", {{.what = "barrier 'here'", .inside = "evaluate()", .barrier = "here"}});
  task("worker/1", {{.tasks = {"worker/0"}, .inside = "step 81"}});
  barriers[{"worker/0", "here"}] = {"worker/1"};
  wait(12s);
  EXPECT_THAT(error, HasSubstr("worker/0 waits in barrier 'here' within evaluate() for worker/1"));
}

TEST_F(Watched, AServerThatSaysNothingIsAboutToAnswer) {
  task("worker/0", {{.what = "barrier 'a'", .barrier = "a"}});
  task("worker/1", {{.what = "push to ps/0", .tasks = {"ps/0"}, .subject = "model 1"}});
  task("ps/0");
  barriers[{"worker/0", "a"}] = {"worker/1"};
  wait(30s);
  EXPECT_EQ(error, "");
}

TEST_F(Watched, WhoeverNeedsSomeOfManyIsHeldUpOnlyByTooFew) {
  const auto needs_two = [](const std::string& name) {
    return SaidWait{
        .what = "a gradient", .tasks = {"worker/1", "worker/2", "worker/3"}, .enough = 2, .of = name};
  };
  task("worker/0", {{.what = "push to ps/0", .tasks = {"ps/0"}, .subject = ""}});
  said["worker/0"].first.front().subject = "model 1";
  SaidWait entry = needs_two("worker/0");
  entry.subject = "model 1";
  task("ps/0", {entry});
  task("worker/1", {{.what = "barrier 'a'", .barrier = "a"}});
  task("worker/2");
  task("worker/3");
  barriers[{"worker/1", "a"}] = {"worker/0"};
  wait(30s);
  EXPECT_EQ(error, "");
  task("worker/2", {{.what = "barrier 'a'", .barrier = "a"}});
  barriers[{"worker/2", "a"}] = {"worker/0"};
  wait(13s);
  EXPECT_THAT(error, HasSubstr("for a gradient of 2 of worker/1, worker/2 and worker/3"));
}

TEST_F(Watched, SomebodyWhoIsGoneIsWaitedForInVain) {
  task("worker/1", {{.what = "get of 'muster/model/1'",
                     .tasks = {"worker/0"},
                     .inside = "Trainer",
                     .key = "muster/model/1"}});
  keys.insert({"worker/1", "muster/model/1"});
  view.tasks["worker/0"] = {.presence = Presence::kMayCome, .description = "worker/0", .gone = ""};
  wait(20s);
  EXPECT_EQ(error, "");
  view.tasks["worker/0"] = {
      .presence = Presence::kGone, .description = "worker/0", .gone = "has failed: killed"};
  wait(3s);
  EXPECT_THAT(error, HasSubstr("worker/1 waits in Trainer for worker/0 (since "));
  EXPECT_THAT(error, HasSubstr(", but worker/0 has failed: killed"));
}

TEST_F(Watched, ThoseWhoMeetDoNotHoldEachOtherUp) {
  const SaidWait meets = {.what = "all_reduce",
                          .tasks = {"worker/0", "worker/1"},
                          .meeting = "workers 7",
                          .limit = proto::Wait::OWN};
  task("worker/0", {meets});
  task("worker/1", {meets});
  wait(30s);
  EXPECT_EQ(error, "");
}

TEST_F(Watched, AMeetingThatOneDoesNotComeTo) {
  task("worker/0",
       {{.what = "all_reduce", .tasks = {"worker/1"}, .meeting = "workers 7", .limit = proto::Wait::OWN}});
  task("worker/1", {{.what = "barrier 'a'", .barrier = "a"}});
  barriers[{"worker/1", "a"}] = {"worker/0"};
  wait(12s);
  EXPECT_THAT(error, HasSubstr("worker/0 waits in all_reduce for worker/1"));
}

TEST_F(Watched, ALimitThatTheProgramChoseIsNoDeadlock) {
  task("worker/0", {{.what = "barrier 'a'", .barrier = "a", .limit = proto::Wait::CHOSEN}});
  task("worker/1", {{.what = "barrier 'b'", .barrier = "b"}});
  barriers[{"worker/0", "a"}] = {"worker/1"};
  barriers[{"worker/1", "b"}] = {"worker/0"};
  wait(30s);
  EXPECT_EQ(error, "");
}

TEST_F(Watched, ASecondThreadThatWaitsHoldsNobodyUp) {
  task("worker/0", {{.what = "barrier 'a'", .barrier = "a", .main = false}});
  task("worker/1", {{.what = "barrier 'b'", .barrier = "b"}});
  barriers[{"worker/0", "a"}] = {"worker/1"};
  barriers[{"worker/1", "b"}] = {"worker/0"};
  wait(30s);
  EXPECT_EQ(error, "");
}

TEST_F(Watched, WhoeverHasNotLookedAgainMayBeAboutToGoOn) {
  task("worker/0", {{.what = "all_reduce", .tasks = {"worker/1"}, .looks = false}});
  task("worker/1", {{.what = "barrier 'a'", .barrier = "a"}});
  barriers[{"worker/1", "a"}] = {"worker/0"};
  wait(30s);
  EXPECT_EQ(error, "");
  said["worker/0"].first.front().looks = true;
  wait(2s);
  EXPECT_THAT(error, HasSubstr("deadlock"));
}

// What a task said before the others came to wait may be heard after it, and long after.
TEST_F(Watched, WhatWasSaidBeforeMayBeHeardLate) {
  task("worker/0", {{.tasks = {"worker/1"}, .inside = "step 7"}});
  task("worker/1", {{.tasks = {"worker/0"}, .inside = "evaluate()"}});
  hears = false;
  wait(30s);
  EXPECT_EQ(error, "");
  hears = true;
  wait(1s);
  EXPECT_THAT(error, HasSubstr("deadlock"));
}

TEST_F(Watched, APauseOfAllIsNoWait) {
  task("worker/0", {{.tasks = {"worker/1"}, .inside = "step 81"}});
  task("worker/1");
  wait(3s);
  now += 1h;
  wait(3s);
  EXPECT_EQ(error, "");
  EXPECT_THAT(warnings, IsEmpty());
}

TEST_F(Watched, AnotherWaitIsAnotherStory) {
  task("worker/1");
  for (uint64_t id = 1; id < 20; ++id) {
    task("worker/0", {{.tasks = {"worker/1"}, .inside = "step 81", .id = id}});
    wait(5s);
  }
  EXPECT_THAT(warnings, IsEmpty());
  EXPECT_EQ(error, "");
}

TEST_F(Watched, ATaskThatNobodyKnowsHoldsNobodyUp) {
  task("worker/0", {{.what = "all_reduce", .tasks = {"rank 1"}}});
  task("worker/1", {{.what = "barrier 'a'", .barrier = "a"}});
  barriers[{"worker/1", "a"}] = {"worker/0"};
  wait(30s);
  EXPECT_EQ(error, "");
}

TEST_F(Watched, AnObserverMayWaitAsLongAsItLikes) {
  task("evaluator/0", {{.what = "get of 'k'", .key = "k"}});
  view.tasks["evaluator/0"].is_observer = true;
  task("worker/0");
  keys.insert({"evaluator/0", "k"});
  wait(100s);
  EXPECT_EQ(error, "");
  EXPECT_THAT(warnings, IsEmpty());
}

}  // namespace
}  // namespace muster::detail
