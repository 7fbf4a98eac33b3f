#pragma once

// A subject of `muster bench` as running processes, and the conversation with its ranks
// (bench/peers/conversation.h).
//
// One thread. Signals are read from a descriptor, so that every wait here can be interrupted.

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/driver/subject.h"
#include "muster/base/descriptor.h"
#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/deadline.h"
#include "muster/orphan_reaper.h"
#include "muster/task_process.h"

namespace muster::detail::bench {

/// A subject died, did not answer, or answered with an error. The message names it, the rank, and its last
/// lines.
class SubjectFailed : public Error {
 public:
  using Error::Error;
};

/// The user stopped us, by this signal. No Error: whoever goes on after one must not go on after this.
class Interrupted : public std::runtime_error {
 public:
  explicit Interrupted(int number);
  int signal() const { return signal_; }

 private:
  int signal_;
};

/// Blocks SIGINT, SIGTERM and SIGHUP for the rest of the process, and reads them instead.
class SignalWatch {
 public:
  SignalWatch();

  int descriptor() const { return fd_.get(); }

  /// Throws Interrupted when a signal has come.
  void check() const;

 private:
  Descriptor fd_;
};

class RunningSubject {
 public:
  struct Options {
    std::filesystem::path folder;  ///< is made, for the FIFOs
    Environment environment;
    std::chrono::milliseconds timeout{std::chrono::minutes(2)};  ///< for one answer
  };

  /// Starts the processes. `reaper` and `signals` must outlive it. Throws SystemError, and InvalidArgument
  /// when there is no such program.
  RunningSubject(SubjectCommand command, Options options, OrphanReaper& reaper, const SignalWatch& signals);

  /// Ends all processes: by the word quit, then TERM, then KILL. Blocks for a few seconds at most.
  ~RunningSubject();
  RunningSubject(const RunningSubject&) = delete;
  RunningSubject& operator=(const RunningSubject&) = delete;

  /// Blocks until all ranks have said that they are ready. Call it first. Throws SubjectFailed, Interrupted.
  void await_ready();

  /// The answers of all ranks to a command, in their order. Throws SubjectFailed, Interrupted; then the
  /// subject is of no further use.
  std::vector<std::string> ask(const std::string& command);

  /// Throws SubjectFailed: these answers to `command` are not what they should be.
  [[noreturn]] void reject(const std::string& command, const std::vector<std::string>& answers) const;

  const SubjectCommand& command() const { return command_; }

  /// Of all ranks in their order, after await_ready().
  std::vector<pid_t> pids() const;

  /// Asks all ranks to end, and does not wait: so that several subjects can end at the same time.
  void tell_to_quit();

 private:
  struct Rank {
    Descriptor in;
    Descriptor out;
    Descriptor process;  // tells when it has ended; valid after await_ready()
    pid_t pid = -1;
    std::string received;
  };
  struct Process {
    std::string name;
    std::unique_ptr<TaskProcess> task;
    Descriptor ended;
  };

  std::vector<std::string> collect(const std::string& to_what);
  void watch_group(pid_t group);
  void stop_if_it_spins();
  void go_on();
  void check_errors(const std::vector<std::string>& answers, const std::string& to_what);
  void check_alive(const std::vector<std::string>& answers, const std::string& to_what);
  void wait_for_answers(Deadline deadline);
  void wait_for_end(Deadline deadline);
  void poll_with_processes(std::vector<int> descriptors, Deadline deadline);
  void read_output();
  bool all_ended();
  [[noreturn]] void fail(const std::string& what);

  const SubjectCommand command_;
  const std::chrono::milliseconds timeout_;
  OrphanReaper& reaper_;
  const SignalWatch& signals_;
  std::vector<Rank> ranks_;
  std::vector<Process> processes_;
  std::vector<pid_t> groups_;  // watched by the reaper; a launcher may put its ranks into groups of their own
  std::string output_;         // the end of what all processes wrote
  bool in_doubt_ = false;      // a command is unanswered: words may not be heard
  bool told_to_quit_ = false;
};

}  // namespace muster::detail::bench
