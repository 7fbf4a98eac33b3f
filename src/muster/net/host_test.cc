#include "muster/net/host.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

TEST(Host, IsTheSameThroughoutOneHost) {
  EXPECT_EQ(Host::local().identity, Host::local().identity);
  EXPECT_FALSE(Host::local().name.empty());
}

TEST(Host, AnotherNetworkNamespaceIsAnotherHost) {
  const std::string here = Host::local().identity;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // A user namespace first: then no privilege is needed for the network one.
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0 && unshare(CLONE_NEWNET) != 0) _exit(2);
    _exit(Host::local().identity == here ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: seen as the same host; 2: no namespace could be made";
}

}  // namespace
}  // namespace muster::detail
