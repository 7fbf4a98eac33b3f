#include "muster/base/descriptor.h"

#include <fcntl.h>
#include <sys/eventfd.h>

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

bool is_open(int fd) {
  return fcntl(fd, F_GETFD) >= 0;
}

TEST(Descriptor, ClosesWhatItOwnsOnce) {
  int fd = -1;
  {
    Descriptor one(eventfd(0, EFD_CLOEXEC));
    fd = one.get();
    ASSERT_TRUE(one);
    Descriptor two(std::move(one));
    EXPECT_FALSE(one);  // NOLINT(bugprone-use-after-move): what is left is the subject
    EXPECT_TRUE(is_open(fd));
    one = std::move(two);
    EXPECT_TRUE(is_open(fd));
  }
  EXPECT_FALSE(is_open(fd));
}

TEST(Descriptor, ClosesTheOldOneWhenItGetsAnother) {
  Descriptor one(eventfd(0, EFD_CLOEXEC));
  const int old = one.get();
  one = Descriptor(eventfd(0, EFD_CLOEXEC));
  EXPECT_FALSE(is_open(old));
  EXPECT_TRUE(is_open(one.get()));
}

TEST(Descriptor, GivesAwayWhatItReleases) {
  int fd = -1;
  {
    Descriptor one(eventfd(0, EFD_CLOEXEC));
    fd = one.release();
  }
  ASSERT_TRUE(is_open(fd));
  ::close(fd);
}

}  // namespace
}  // namespace muster::detail
