#include "muster/net/resolve.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST(Resolve, GivesTheAddressesOfAName) {
  const auto found = resolve({"127.0.0.1", 80}, /*passive=*/false);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].family(), AF_INET);
  EXPECT_FALSE(resolve({"localhost", 80}, /*passive=*/false).empty());
}

TEST(Resolve, SaysWhichNameIsNotKnown) {
  try {
    resolve({"no such host", 80}, /*passive=*/false);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const SystemError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no such host"));
  }
}

TEST(FirstThatWorks, IsTheNextWhenOneFails) {
  const std::vector<std::string> candidates = {"dead", "good", "never tried"};
  const auto found = first_that_works(candidates, Deadline::never(), [](const std::string& one, Deadline) {
    if (one == "dead") throw PeerLost("it is dead");
    return one;
  });
  EXPECT_EQ(found, "good");
}

TEST(FirstThatWorks, OneThatDoesNotAnswerLeavesTimeForTheOthers) {
  const std::vector<std::string> candidates = {"silent", "good"};
  const auto deadline = Deadline::after(40s);
  const auto found = first_that_works(candidates, deadline, [](const std::string& one, Deadline share) {
    EXPECT_LE(share.remaining(), one == "silent" ? 20s : 40s);
    EXPECT_GT(share.remaining(), one == "silent" ? 1s : 21s);
    if (one == "silent") throw DeadlineExceeded("it did not answer in time");
    return one;
  });
  EXPECT_EQ(found, "good");
}

TEST(FirstThatWorks, ThrowsWhatBecameOfTheLast) {
  const std::vector<std::string> candidates = {"first", "last"};
  const auto fail = [](const std::string& one, Deadline) -> int { throw PeerLost(one); };
  try {
    first_that_works(candidates, Deadline::never(), fail);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const PeerLost& error) {
    EXPECT_STREQ(error.what(), "last");
  }
}

}  // namespace
}  // namespace muster::detail
