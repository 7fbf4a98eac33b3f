#include "muster/base/cpu.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

cpu_set_t only(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return set;
}

TEST(AvailableCores, ProcessesThatAreBoundApartHaveAllTheirCoresTogether) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &before)) cores.push_back(core);
  }
  const pid_t other = fork();
  if (other == 0) {
    pause();
    _exit(0);
  }
  const cpu_set_t first = only(cores.front());
  const cpu_set_t last = only(cores.back());
  EXPECT_EQ(sched_setaffinity(other, sizeof(first), &first), 0);
  EXPECT_EQ(sched_setaffinity(0, sizeof(last), &last), 0);
  EXPECT_EQ(available_cores(), 1);
  EXPECT_EQ(available_cores({getpid()}), 1);
  EXPECT_EQ(available_cores({getpid(), other}), std::min<int>(2, static_cast<int>(cores.size())));
  EXPECT_EQ(available_cores({getpid(), 0x7fffffff}), 1);
  sched_setaffinity(0, sizeof(before), &before);
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
}

}  // namespace
}  // namespace muster::detail
