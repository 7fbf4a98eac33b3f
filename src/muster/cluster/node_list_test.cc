#include "muster/cluster/node_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

using ::testing::ElementsAre;

TEST(NodeList, ExpandsRangesWithLeadingZeros) {
  EXPECT_THAT(expand_node_list("gpu[01-03,07]"), ElementsAre("gpu01", "gpu02", "gpu03", "gpu07"));
  EXPECT_THAT(expand_node_list("a1,b[2-3],c"), ElementsAre("a1", "b2", "b3", "c"));
  EXPECT_THAT(expand_node_list("n[8-11]"), ElementsAre("n8", "n9", "n10", "n11"));
  EXPECT_THAT(expand_node_list("r[1-2]n[0-1].x"), ElementsAre("r1n0.x", "r1n1.x", "r2n0.x", "r2n1.x"));
  EXPECT_THAT(expand_node_list("login"), ElementsAre("login"));
}

TEST(NodeList, RejectsWhatSlurmDoesNotWrite) {
  for (const char* text :
       {"", "a,,b", "gpu[1-3", "gpu1-3]", "gpu[3-1]", "gpu[a-b]", "gpu[[1]]", "gpu[]", "gpu[0-999999999]"}) {
    EXPECT_THROW(expand_node_list(text), InvalidArgument) << text;
  }
}

TEST(Counts, ExpandRepetitions) {
  EXPECT_THAT(expand_counts("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(expand_counts("4"), ElementsAre(4));
  for (const char* text : {"", "x", "2(x", "2(x0)", "2(y3)", "2(x3"})
    EXPECT_THROW(expand_counts(text), InvalidArgument) << text;
}

}  // namespace
}  // namespace muster::detail
