#pragma once

// Real processes for tests: started by fork and exec, each in a process group of its own, with standard
// output and error collected as one text.
//
//   ProcessCluster cluster;
//   int worker = cluster.start({.command = {self_path(), "--task-main=join"}, .environment = {{"RANK",
//   "0"}}}); cluster.wait_for_output(worker, "joined", Deadline::after(30s)); cluster.signal(worker,
//   SIGKILL); EXPECT_EQ(cluster.wait(worker, Deadline::after(30s)).signal, SIGKILL);
//
// Whatever still runs when the cluster is destroyed is killed, with its children. Thread-safe.

#include <sys/types.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/deadline.h"

namespace muster::testing {

/// The program that is running.
std::string self_path();

class ProcessCluster {
 public:
  struct Program {
    std::vector<std::string> command;
    std::map<std::string, std::string>
        environment;  ///< on top of this process's own, less other launchers' variables
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
    std::string output;
    std::string name;
    bool closed = false;
    bool reaped = false;
    Result result;
  };
  Process& at(int process) const { return *processes_.at(static_cast<size_t>(process)); }
  void read_output(Process& process);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Process>>
      processes_;  // the vector by its one owner; outputs protected by mutex_
};

/// Processes on this machine whose command line contains `text`, for tests that nothing was left behind.
std::vector<pid_t> processes_mentioning(const std::string& text);

}  // namespace muster::testing
