#include "muster/base/wait_registry.h"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

auto wait_for(const char* what) {
  return [what] { return WaitFor{.what = what, .tasks = {"worker/1"}}; };
}

TEST(WaitRegistry, AShortWaitIsNeverDescribed) {
  WaitRegistry registry;
  const ScopedWait wait(&registry, []() -> WaitFor {
    ADD_FAILURE();
    return {};
  });
  for (int i = 0; i < 100; ++i) look_at_wait();
  EXPECT_THAT(registry.waits(), IsEmpty());
}

TEST(WaitRegistry, AWaitThatLastsIsThereUntilItEnds) {
  WaitRegistry registry;
  {
    const ScopedWait wait(&registry, wait_for("a"));
    const auto limit = Deadline::after(60s);
    while (registry.waits().empty() && !limit.expired()) look_at_wait();
    ASSERT_THAT(registry.waits(), SizeIs(1));
    const Wait first = registry.waits().front();
    EXPECT_EQ(first.wait_for.what, "a");
    EXPECT_THAT(first.wait_for.tasks, ElementsAre("worker/1"));
    EXPECT_TRUE(first.main);
    look_at_wait();
    EXPECT_EQ(registry.waits().front().id, first.id);
    EXPECT_GT(registry.waits().front().looks, first.looks);
  }
  EXPECT_THAT(registry.waits(), IsEmpty());
}

TEST(WaitRegistry, AWaitThatGetsOnBeginsAnew) {
  WaitRegistry registry;
  const ScopedWait wait(&registry, wait_for("a"));
  const auto limit = Deadline::after(60s);
  while (registry.waits().empty() && !limit.expired()) look_at_wait();
  ASSERT_THAT(registry.waits(), SizeIs(1));
  const uint64_t first = registry.waits().front().id;
  wait_gets_on();
  EXPECT_THAT(registry.waits(), IsEmpty());
  while (registry.waits().empty() && !limit.expired()) look_at_wait();
  ASSERT_THAT(registry.waits(), SizeIs(1));
  EXPECT_NE(registry.waits().front().id, first);
}

TEST(WaitRegistry, OfNestedWaitsTheInnermostCounts) {
  WaitRegistry registry;
  ScopedWait outer(&registry, wait_for("outer"));
  outer.show();
  {
    ScopedWait inner(&registry, wait_for("inner"));
    inner.show();
    ASSERT_THAT(registry.waits(), SizeIs(1));
    EXPECT_EQ(registry.waits().front().wait_for.what, "inner");
  }
  ASSERT_THAT(registry.waits(), SizeIs(1));
  EXPECT_EQ(registry.waits().front().wait_for.what, "outer");
}

TEST(WaitRegistry, KnowsTheJobsOwnThread) {
  WaitRegistry registry;
  std::thread([&] {
    ScopedWait wait(&registry, wait_for("a"));
    wait.show();
    EXPECT_FALSE(registry.waits().front().main);
    wait.set_main();
    wait.show();
    EXPECT_TRUE(registry.waits().front().main);
  }).join();
}

TEST(WaitRegistry, SaysInWhichCallTheProgramIs) {
  WaitRegistry registry;
  EXPECT_EQ(registry.doing(), "");
  {
    const ScopedCall step(&registry, "step", 81);
    EXPECT_THAT(registry.doing(), StartsWith("in step 81 since "));
    {
      const ScopedCall inner(&registry, "evaluate()");
      ScopedWait wait(&registry, wait_for("a"));
      wait.show();
      EXPECT_EQ(registry.waits().front().inside, "evaluate()");
    }
    EXPECT_THAT(registry.doing(), StartsWith("in step 81 since "));
  }
  EXPECT_THAT(registry.doing(), StartsWith("out of step 81 since "));
  ScopedWait wait(&registry, wait_for("a"));
  wait.show();
  EXPECT_EQ(registry.waits().front().inside, "");
}

TEST(WaitRegistry, AServerReplacesWhatItSaid) {
  WaitRegistry registry;
  int owner = 0;
  registry.set_held(&owner, {{.of = "worker/0"}, {.of = "worker/1"}});
  EXPECT_THAT(registry.waits(), SizeIs(2));
  registry.set_held(&owner, {{.of = "worker/1"}});
  ASSERT_THAT(registry.waits(), SizeIs(1));
  EXPECT_EQ(registry.waits().front().of, "worker/1");
  registry.set_held(&owner, {});
  EXPECT_THAT(registry.waits(), IsEmpty());
}

TEST(WaitRegistry, ItSaysInWordsWhatTheTaskWaitsForOrElseDoes) {
  WaitRegistry registry;
  EXPECT_EQ(registry.describe(), "");
  int owner = 0;
  registry.set_held(&owner, {{.of = "worker/0", .wait_for = {.what = "its own"}}});
  {
    ScopedWait wait(&registry, wait_for("barrier 'a'"));
    wait.show();
    EXPECT_THAT(registry.describe(), StartsWith("waits in barrier 'a' for worker/1 since "));
    const ScopedCall call(&registry, "step", 81);
    EXPECT_THAT(registry.describe(), StartsWith("waits in step 81 for worker/1 since "));
  }
  EXPECT_THAT(registry.describe(), StartsWith("is out of step 81 since "));
}

TEST(WaitRegistry, WithoutOneNothingHappens) {
  ScopedWait wait(nullptr, wait_for("a"));
  wait.show();
  look_at_wait();
  const ScopedCall call(nullptr, "step", 1);
}

}  // namespace
}  // namespace muster::detail
