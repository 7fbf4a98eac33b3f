#include "muster/base/environment.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

TEST(Environment, IsASnapshotOfTheProcess) {
  setenv("MUSTER_TEST_VARIABLE", "a=b", 1);
  const auto environment = Environment::of_process();
  unsetenv("MUSTER_TEST_VARIABLE");
  EXPECT_EQ(environment.get("MUSTER_TEST_VARIABLE"), "a=b");
  EXPECT_FALSE(Environment::of_process().get("MUSTER_TEST_VARIABLE"));
}

TEST(Environment, AnEmptyVariableCountsAsUnset) {
  const Environment environment{{"RANK", ""}};
  EXPECT_FALSE(environment.get("RANK"));
  EXPECT_FALSE(environment.integer("RANK", 0));
}

TEST(Environment, ANumberThatIsNoneIsNamed) {
  const Environment environment{{"RANK", "two"}, {"SIZE", "-1"}};
  for (const char* name : {"RANK", "SIZE"}) {
    try {
      environment.integer(name, 0);
      FAIL() << name;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(std::string(name) + "="), std::string::npos) << error.what();
    }
  }
}

TEST(Environment, NamesWithAPrefix) {
  const Environment environment{{"A", "1"}, {"MUSTER_A", "1"}, {"MUSTER_B", "2"}, {"Z", "1"}};
  EXPECT_EQ(environment.names_with_prefix("MUSTER_"), (std::vector<std::string>{"MUSTER_A", "MUSTER_B"}));
}

}  // namespace
}  // namespace muster::detail
