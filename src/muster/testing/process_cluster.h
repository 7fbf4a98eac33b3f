#pragma once

// Real processes for tests: started by fork and exec, each in a process group of its own, with standard
// output and error collected as one text.
//
//   ProcessCluster cluster;
//   int worker = cluster.start({.command = {self_path(), "--task-main=enter"},
//                               .environment = {{"RANK", "0"}}});
//   cluster.wait_for_output(worker, "entered", soon());
//   cluster.signal(worker, SIGKILL);
//   EXPECT_EQ(cluster.wait(worker, soon()).signal, SIGKILL);
//
// Whatever still runs when the cluster is destroyed is killed, with its children. Of one thread; threads of
// its own read what the processes print. Throws SystemError when no process can be started.

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/deadline.h"

namespace muster::detail::testing {

/// The program that is running, and another that stands beside it.
std::string self_path();
std::string beside_self(const std::string& program);

/// When processes should long have done what a test waits for, also on a busy machine.
Deadline soon();

class ProcessCluster {
 public:
  struct Program {
    std::vector<std::string> command;
    /// On top of this process's own, less other launchers' variables.
    std::map<std::string, std::string> environment;
  };

  struct Result {
    int exit_code = -1;  ///< -1 when a signal ended it
    int signal = 0;
    std::string output;
    bool ok() const { return exit_code == 0; }
  };

  ProcessCluster() = default;
  ~ProcessCluster();

  int start(const Program& program);
  pid_t pid(int process) const;
  void signal(int process, int number);

  /// The same signal to the whole group, as a terminal sends it.
  void signal_group(int process, int number);

  /// Throws DeadlineExceeded with the output so far, and when the process ends without having printed `text`.
  void wait_for_output(int process, const std::string& text, Deadline deadline);

  /// Waits for the exit. At the deadline it kills the process and throws DeadlineExceeded with its output.
  Result wait(int process, Deadline deadline);

  std::string output(int process) const;

 private:
  struct Process {
    pid_t pid = -1;
    int pipe = -1;
    std::thread reader;
    std::string output;   // the cluster's mutex guards it
    bool closed = false;  // likewise: the reader has come to the end
    std::string name;
    bool reaped = false;
    Result result;
  };
  Process& at(int process) const { return *processes_.at(static_cast<size_t>(process)); }
  void read_output(Process& process);

  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::vector<std::unique_ptr<Process>> processes_;  // of the one thread
};

/// Processes on this machine whose command line contains `text`, for tests that nothing was left behind.
std::vector<pid_t> processes_mentioning(const std::string& text);

}  // namespace muster::detail::testing
