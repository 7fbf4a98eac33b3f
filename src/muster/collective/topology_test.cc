#include "muster/collective/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail {
namespace {

TEST(Topology, NumbersHostsInTheOrderOfTheirFirstRank) {
  const Topology topology({7, 3, 7, 3, 3});
  EXPECT_EQ(topology.hosts(), 2);
  EXPECT_THAT(topology.ranks_of(0), ::testing::ElementsAre(0, 2));
  EXPECT_THAT(topology.ranks_of(1), ::testing::ElementsAre(1, 3, 4));
  EXPECT_EQ(topology.local_rank(4), 2);
  EXPECT_EQ(topology.fewest(), 2);
  EXPECT_FALSE(topology.uniform());
}

}  // namespace
}  // namespace muster::detail
