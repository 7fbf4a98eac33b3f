#include "muster/collective/gather_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/testing/rank_group.h"

namespace muster::detail {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::RankGroup;

TEST(GatherTexts, GivesTheTextsOfAllRanksInTheirOrder) {
  const auto errors = RankGroup({.ranks = 3}).run([](Communicator& comm) {
    const std::string mine(static_cast<size_t>(comm.rank()), 'x');  // of different lengths; one is empty
    EXPECT_THAT(gather_texts(comm, "a", mine), ElementsAre("", "x", "xx"));
    EXPECT_THAT(gather_texts(comm, "a", ""), ElementsAre("", "", ""));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(GatherTexts, RanksInDifferentCallsAreToldSo) {
  const auto errors = RankGroup({.ranks = 3}).run([](Communicator& comm) {
    gather_texts(comm, comm.rank() == 2 ? "evaluate()" : "step()", "text");
  });
  EXPECT_THAT(errors, Each(::testing::HasSubstr("rank 0 is in step(), rank 2 in evaluate()")));
}

}  // namespace
}  // namespace muster::detail
