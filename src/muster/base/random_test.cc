#include "muster/base/random.h"

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

TEST(RandomBytes, AreAsManyAsAskedFor) {
  for (const size_t bytes : {0U, 1U, 32U, 1000U}) EXPECT_EQ(random_bytes(bytes).size(), bytes);
  EXPECT_NE(random_bytes(1000), random_bytes(1000));
}

TEST(RandomToken, DoesNotRepeat) {
  EXPECT_EQ(random_token().size(), 32u);
  EXPECT_NE(random_token(), random_token());
}

}  // namespace
}  // namespace muster::detail
