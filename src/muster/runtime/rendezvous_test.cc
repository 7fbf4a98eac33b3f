#include "muster/runtime/rendezvous.h"

#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"

namespace muster::detail {
namespace {

using ::testing::HasSubstr;

const StepStatus kLost = {StepStatus::Code::kPeerLost, "task 1 was lost"};

std::string thrown_by(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

TEST(Rendezvous, AValueMayComeBeforeItsStepHasBegun) {
  Rendezvous rendezvous;
  rendezvous.put(7, 3, 1.5);
  const auto values = rendezvous.step(7)->take(/*may_wait=*/false);
  ASSERT_EQ(values.size(), 1U);
  EXPECT_EQ(values[0].first, 3U);
  EXPECT_EQ(values[0].second.toDouble(), 1.5);
  EXPECT_TRUE(rendezvous.step(8)->take(/*may_wait=*/false).empty()) << "it is of step 7";
}

TEST(Rendezvous, WhoTakesWaitsForAValue) {
  Rendezvous rendezvous;
  const auto step = rendezvous.step(1);
  auto taken = std::async(std::launch::async, [&] { return step->take(/*may_wait=*/true); });
  rendezvous.put(1, 0, 2.0);
  EXPECT_EQ(taken.get().front().second.toDouble(), 2);
  EXPECT_THROW(step->take(/*may_wait=*/true, Deadline::after(std::chrono::milliseconds(1))),
               DeadlineExceeded);
}

TEST(Rendezvous, AValueThatComesTwiceIsRefused) {
  Rendezvous rendezvous;
  rendezvous.put(1, 4, 1.0);
  EXPECT_THAT(thrown_by([&] { rendezvous.put(1, 4, 1.0); }), HasSubstr("the value 4 of a step came twice"));
  rendezvous.step(1)->take(/*may_wait=*/false);
  EXPECT_THAT(thrown_by([&] { rendezvous.put(1, 4, 1.0); }), HasSubstr("came twice")) << "also afterwards";
}

TEST(Rendezvous, AnAbortPoisonsTheStepForWhoWaitsAndForWhoComesLater) {
  Rendezvous rendezvous;
  const auto step = rendezvous.step(1);
  auto waits =
      std::async(std::launch::async, [&] { return thrown_by([&] { step->take(/*may_wait=*/true); }); });
  rendezvous.abort(1, kLost);
  rendezvous.abort(1, {StepStatus::Code::kAborted, "a later reason"});
  EXPECT_EQ(waits.get(), kLost.text);
  EXPECT_THROW(step->check(), PeerLost);
  EXPECT_THROW(rendezvous.step(1)->take(/*may_wait=*/false), PeerLost);
  rendezvous.abort(2, kLost);
  EXPECT_THROW(rendezvous.step(2)->check(), PeerLost) << "it had not begun";
}

TEST(Rendezvous, AnAbortedStepKeepsNoValues) {
  Rendezvous rendezvous;
  const at::Tensor before = at::ones({8});
  const at::Tensor after = at::ones({8});
  rendezvous.put(1, 0, before);
  rendezvous.abort(1, kLost);
  rendezvous.put(1, 1, after);
  EXPECT_EQ(before.use_count(), 1U);
  EXPECT_EQ(after.use_count(), 1U);
}

TEST(Rendezvous, AValueOfAStepThatHasFailedHereIsDropped) {
  Rendezvous rendezvous;
  rendezvous.step(1);
  rendezvous.end(1, /*has_failed=*/true);
  const at::Tensor late = at::ones({8});
  rendezvous.put(1, 0, late);
  EXPECT_EQ(late.use_count(), 1U);
}

}  // namespace
}  // namespace muster::detail
