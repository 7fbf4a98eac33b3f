#include "muster/collective/named_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/testing/rank_group.h"

namespace muster::detail {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using testing::RankGroup;
using Sums = std::map<std::string, double>;

TEST(NamedSums, AreAddedOverTheRanksThatHaveThem) {
  const auto errors = RankGroup({.ranks = 3}).run([](Communicator& comm) {
    Sums mine = {{"samples", comm.rank() + 1.0}};
    if (comm.rank() == 1) mine["correct"] = 5;
    EXPECT_EQ(add_up(comm, "a", mine), (Sums{{"samples", 6}, {"correct", 5}}));
    EXPECT_THAT(add_up(comm, "a", {}), IsEmpty());
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(NamedSums, ThatArePackedAddUpToTheSame) {
  const std::string packed = pack_sums({{"a", 1.5}, {"b", -2}});
  EXPECT_EQ(add_packed({packed, "", packed}), (Sums{{"a", 3}, {"b", -4}}));
  EXPECT_THROW(add_packed({"no zero byte"}), InvalidArgument);
  EXPECT_THROW(pack_sums({{std::string("a\0b", 3), 1}}), InvalidArgument);
  EXPECT_THROW(add_packed({packed.substr(0, packed.size() - 1)}), InvalidArgument);
}

}  // namespace
}  // namespace muster::detail
