#include "muster/base/thread_stacks.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/log.h"
#include "muster/deadline.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

#if defined(__SANITIZE_THREAD__)
constexpr bool kIsThreadSanitizer = true;
#else
constexpr bool kIsThreadSanitizer = false;
#endif

// Holds threads that read a byte from it until the test writes as many.
class StackGate {
 public:
  StackGate() { EXPECT_EQ(pipe2(ends_.data(), O_CLOEXEC), 0); }
  ~StackGate() {
    for (const int fd : ends_) close(fd);
  }
  // The kernel begins a read() again that a signal interrupts, but not a poll().
  ssize_t read_byte() const {
    char byte = 0;
    return read(ends_[0], &byte, 1);
  }
  void wait() const {
    pollfd entry = {.fd = ends_[0], .events = POLLIN, .revents = 0};
    while (poll(&entry, 1, -1) != 1) {
    }
  }
  void open() const { EXPECT_EQ(write(ends_[1], "x", 1), 1); }
  int reading_end() const { return ends_[0]; }

 private:
  std::array<int, 2> ends_{};
};

[[gnu::noinline]] void wait_in_the_first_thread(const StackGate& gate) {
  gate.wait();
}

[[gnu::noinline]] void read_in_the_third_thread(const StackGate& gate) {
  EXPECT_EQ(gate.read_byte(), 1);
}

class ConditionWaiter {
 public:
  [[gnu::noinline]] void wait_in_the_second_thread() {
    MutexLock lock(mutex_);
    while (!is_open_) opened_.wait(lock);
  }
  void open() {
    const MutexLock lock(mutex_);
    is_open_ = true;
    opened_.notify_all();
  }

 private:
  Mutex mutex_;
  ConditionVariable opened_;
  bool is_open_ MUSTER_GUARDED_BY(mutex_) = false;
};

// The threads of ThreadStacks that there are, whatever else a sanitizer or the test has.
size_t count_threads() {
  size_t count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(thread.path() / "comm");
    std::string name;
    if (std::getline(file, name) && name == "muster-stacks") ++count;
  }
  return count;
}

// One that has been made may not have its name yet, and one that has been joined may still be listed.
void wait_for_threads(size_t count) {
  const auto deadline = Deadline::after(60s);
  while (count_threads() != count && !deadline.expired()) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(count_threads(), count);
}

void own_handler(int /*signal*/) {}

auto action_of(int number) {
  struct sigaction action {};
  sigaction(number, nullptr, &action);
  return action.sa_handler;
}

class ThreadStacksTest : public ::testing::Test {
 protected:
  ThreadStacksTest() {
    signal(SIGQUIT, SIG_DFL);  // what runs in the background may ignore it
    set_log_sink([this](std::string_view lines) {
      const MutexLock lock(mutex_);
      text_ += lines;
      written_.notify_all();
    });
  }
  ~ThreadStacksTest() override {
    set_log_sink(nullptr);
    signal(SIGQUIT, SIG_DFL);
  }

  // All that is printed for one SIGQUIT.
  std::string quit() {
    MutexLock lock(mutex_);
    text_.clear();
    kill(getpid(), SIGQUIT);
    const auto deadline = Deadline::after(60s);
    while (text_.find("end of the stacks") == std::string::npos) {
      if (written_.wait_until(lock, deadline.time_point()) == std::cv_status::timeout) {
        ADD_FAILURE() << "no end of the stacks: " << text_;
        break;
      }
    }
    return text_;
  }

  // The part of `text` about the thread of this name.
  static std::string stack_of(const std::string& name, const std::string& text) {
    const size_t at = text.find(fmt::format(" '{}', ", name));
    if (at == std::string::npos) return "";
    return text.substr(at, text.find("\nthread ", at) - at);
  }

  // The same once that thread has come to this function.
  std::string quit_when_in(const std::string& name, const std::string& function) {
    const auto deadline = Deadline::after(60s);
    for (;;) {
      const std::string text = quit();
      if (stack_of(name, text).find(function) != std::string::npos) return text;
      if (!deadline.expired()) continue;
      ADD_FAILURE() << name << " is not seen in " << function << ": " << text;
      return text;
    }
  }

  const int sample_signal_ = SIGRTMIN + 7;

 private:
  Mutex mutex_;
  ConditionVariable written_;
  std::string text_ MUSTER_GUARDED_BY(mutex_);
};

std::thread start_named(const std::string& name, const std::function<void()>& body) {
  return std::thread([name, body] {
    pthread_setname_np(pthread_self(), name.c_str());
    body();
  });
}

TEST_F(ThreadStacksTest, EachThreadIsShownWithItsNameItsStateAndWhereItIsAndGoesOn) {
  ThreadStacks stacks;
  stacks.describe("worker/1", [] { return "waits in barrier 'start' since 12.0 s"; });
  const StackGate gate;
  ConditionWaiter waiter;
  std::thread first = start_named("first", [&] { wait_in_the_first_thread(gate); });
  std::thread second = start_named("second", [&] { waiter.wait_in_the_second_thread(); });
  quit_when_in("second", "wait_in_the_second_thread");
  const auto text = quit_when_in("first", "wait_in_the_first_thread");
  EXPECT_THAT(
      text,
      AllOf(ContainsRegex(fmt::format("^stacks of the [0-9]+ threads of worker/1 \\(pid {}\\)\n", getpid())),
            HasSubstr("addr2line -Cfpe /"),
            HasSubstr("end of the stacks of worker/1, which waits in barrier 'start' since")));
  EXPECT_THAT(stack_of("first", text), HasSubstr("', sleeping:\n    "));
  EXPECT_THAT(stack_of("first", text), Not(HasSubstr("wait_in_the_second_thread")));
  EXPECT_THAT(stack_of("second", text), HasSubstr("ConditionWaiter::wait_in_the_second_thread()+0x"));
  EXPECT_THAT(text, ContainsRegex(fmt::format("\nthread {} '[^\n]*:\n", getpid())));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("on_sample")), Not(HasSubstr("muster-stacks"))));
  gate.open();
  waiter.open();
  first.join();
  second.join();
}

TEST_F(ThreadStacksTest, AReadThatIsInterruptedIsBegunAgain) {
  const ThreadStacks stacks;
  const StackGate gate;
  std::thread third = start_named("third", [&] { read_in_the_third_thread(gate); });
  // ThreadSanitizer keeps signals from a thread until its read() has ended.
  quit_when_in("third", kIsThreadSanitizer ? "did not answer" : "read_in_the_third_thread");
  gate.open();
  third.join();
}

TEST_F(ThreadStacksTest, AThreadThatBlocksTheSignalIsListedWithoutAStack) {
  const ThreadStacks stacks;
  const StackGate gate;
  std::latch is_blocked(1);
  std::thread deaf = start_named("deaf", [&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    is_blocked.count_down();
    gate.wait();
  });
  is_blocked.wait();
  EXPECT_THAT(stack_of("deaf", quit()),
              HasSubstr(fmt::format(", blocks signal {}: no stack", sample_signal_)));
  gate.open();
  deaf.join();
}

TEST_F(ThreadStacksTest, MoreThreadsThanAreAskedAtOnceAreAllShown) {
  constexpr int kThreads = 100;
  const ThreadStacks stacks;
  const StackGate gate;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.push_back(start_named(fmt::format("of-many-{}", i), [&] { wait_in_the_first_thread(gate); }));
  const auto deadline = Deadline::after(60s);
  std::string text;
  int seen = 0;
  do {  // until all have come there
    text = quit();
    seen = 0;
    for (int i = 0; i < kThreads; ++i) {
      const std::string stack = stack_of(fmt::format("of-many-{}", i), text);
      if (stack.find("wait_in_the_first_thread") != std::string::npos) ++seen;
    }
  } while (seen < kThreads && !deadline.expired());
  EXPECT_EQ(seen, kThreads) << text;
  gate.open();
  for (auto& thread : threads) thread.join();
}

// The child lives in this process's memory and holds the thread that made it in the kernel, as a disk that
// does not answer would.
int read_as_child(void* gate) {
  char byte = 0;
  syscall(SYS_read, static_cast<const StackGate*>(gate)->reading_end(), &byte, 1);
  syscall(SYS_exit, 0);
  return 0;
}

void hang_in_the_kernel(StackGate& gate) {
  // ThreadSanitizer ends a process that makes threads after this.
  if (kIsThreadSanitizer) return read_in_the_third_thread(gate);
  alignas(16) static std::array<char, 65536> stack;
  const int child =
      clone(read_as_child, stack.data() + stack.size(), CLONE_VM | CLONE_VFORK | SIGCHLD, &gate);
  EXPECT_GT(child, 0);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

TEST_F(ThreadStacksTest, AThreadThatDoesNotAnswerIsSaidNotToAndIsNotEndedByTheSignalLater) {
  auto stacks = std::make_unique<ThreadStacks>();
  StackGate gate;
  std::thread stuck = start_named("stuck", [&] { hang_in_the_kernel(gate); });
  quit_when_in("stuck", "did not answer within 2.0 s");
  stacks.reset();
  gate.open();
  stuck.join();
}

TEST_F(ThreadStacksTest, AfterItsEndTheThreadIsGoneAndTheSignalsHaveTheirDefaults) {
  wait_for_threads(0);
  {
    const ThreadStacks stacks;
    wait_for_threads(1);
    EXPECT_NE(action_of(SIGQUIT), SIG_DFL);
    const ThreadStacks of_another_task;
    wait_for_threads(1);
  }
  wait_for_threads(0);
  EXPECT_EQ(action_of(SIGQUIT), SIG_DFL);
  EXPECT_EQ(action_of(sample_signal_), SIG_DFL);
  const ThreadStacks again;
  EXPECT_THAT(quit(), HasSubstr("end of the stacks"));
}

TEST_F(ThreadStacksTest, ASignalThatIsIgnoredOrHasAHandlerIsLeftAlone) {
  for (auto* const action : {SIG_IGN, &own_handler}) {
    signal(SIGQUIT, action);
    {
      const ThreadStacks stacks;
      EXPECT_EQ(action_of(SIGQUIT), action);
    }
    EXPECT_EQ(action_of(SIGQUIT), action);
  }
  signal(SIGQUIT, SIG_DFL);
  {
    const ThreadStacks stacks;
    signal(SIGQUIT, own_handler);
  }
  EXPECT_EQ(action_of(SIGQUIT), &own_handler);
}

#if !defined(__SANITIZE_THREAD__)  // which lets no handler run in the fork of a process with threads
// It has no thread that could print.
TEST(ThreadStacks, AForkIsEndedByTheSignalAsWithoutIt) {
  const ThreadStacks stacks;
  const pid_t fork_of_us = fork();
  if (fork_of_us == 0) {
    for (;;) pause();
  }
  kill(fork_of_us, SIGQUIT);
  int status = 0;
  EXPECT_EQ(waitpid(fork_of_us, &status, 0), fork_of_us);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGQUIT);
}
#endif

}  // namespace
}  // namespace muster::detail
