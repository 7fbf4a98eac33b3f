#pragma once

// Shows where a task hangs, as a JVM does: while a ThreadStacks lives, a process that gets SIGQUIT (Ctrl-\ in
// a terminal, kill -QUIT) writes the stacks of all its threads to where the log goes, and goes on.
//
//   stacks of the 2 threads of worker/0 (pid 4711)
//   (the source of mnist+0x5a1f: addr2line -Cfpe /home/me/mnist 0x5a1f)
//   thread 4711 'mnist', sleeping:
//       pthread_cond_clockwait+0x20c (libc.so.6+0x8f2ac)
//       muster::detail::Member::gather(...)+0x2f1 (mnist+0x8c2f1)
//       ...
//   thread 4713 'grpc_global_tim', sleeping, blocks signal 41: no stack
//   end of the stacks of worker/0, which waits in barrier 'start' since 12.0 s
//
// A thread of its own waits for SIGQUIT. It asks each other thread by a signal, SIGRTMIN + 7 (41), to take
// its own stack; one that does not answer within kAnswerWithin is said not to have. What the other threads
// wait in is begun again by the kernel (SA_RESTART) or, as poll() and sleeping are, left early as for any
// other signal. Each thread's stack is one write. The frames are those that the code's unwind tables tell of:
// what a library computes in assembly may hide who called it.
//
// Signals come to the process, so one at a time has an effect. It has none where SIGQUIT is ignored, or one
// of the two signals has a handler, when it is made; both have their default actions again when it is
// destroyed. A handler of SIGQUIT that the program installs later is left alone.
//
// describe() may be called by any thread. Nothing is thrown: without a thread to be had, SIGQUIT does what it
// did before. The destructor waits for stacks that are being printed.

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "muster/base/mutex.h"

namespace muster::detail {

class ThreadStacks {
 public:
  /// Long for a thread that need only be given a core; all threads are asked at once.
  static constexpr auto kAnswerWithin = std::chrono::seconds(2);

  ThreadStacks();
  ~ThreadStacks();
  ThreadStacks(const ThreadStacks&) = delete;
  ThreadStacks& operator=(const ThreadStacks&) = delete;

  /// Whose stacks they are, "worker/1" (before the first call the program's name), and, if it is not null,
  /// what tells what that does: "waits in barrier 'start' since 12.0 s". It is called by the thread that
  /// prints, after the stacks, and not after describe() has been called again.
  void describe(std::string whose, std::function<std::string()> doing);

 private:
  void start();
  void run();
  void print();

  std::atomic<bool> is_over_{false};
  Mutex mutex_;
  std::string whose_ MUSTER_GUARDED_BY(mutex_);
  std::function<std::string()> doing_ MUSTER_GUARDED_BY(mutex_);
  std::thread thread_;  // not running where SIGQUIT is left alone
};

}  // namespace muster::detail
