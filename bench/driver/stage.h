#pragma once

// Where the subjects of `muster bench` are measured: starts them, asks them, and ends them together. While
// one is asked, the others are blocked in read(). One that fails is left out of the rest, which goes on.
//
//   BenchStage stage({.environment = environment}, observer);
//   Contender& contender = stage.add(command, ranks);
//   if (const auto lines = contender.ask("run allreduce 8 1 5 1")) ...
//   stage.end_all();
//
// One thread.

#include <chrono>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/collective/subjects.h"
#include "bench/driver/processes.h"
#include "muster/base/environment.h"
#include "muster/warden.h"

namespace muster {

/// Is told what happens, on the thread of the driver.
class BenchObserver {
 public:
  virtual ~BenchObserver() = default;

  /// Worth a line; the rest goes on.
  virtual void on_notice(const std::string& text) = 0;
  /// `share` of the work, from 0 to 1, is done; what comes now.
  virtual void on_progress(double share, const std::string& text) = 0;
};

/// Is removed at the end, with all that is in it.
class TemporaryFolder {
 public:
  /// In TMPDIR, or in /tmp. Throws SystemError.
  explicit TemporaryFolder(const Environment& environment);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class BenchStage;

/// One variant of a subject among those that are measured in turns.
class Contender {
 public:
  /// Use BenchStage::add().
  Contender(BenchStage& stage, SubjectCommand command, int ranks);

  const BenchVariant& of() const { return command_.of; }
  int ranks() const { return ranks_; }
  std::string name() const;  ///< "openmpi (tcp), 2 ranks"

  /// False after it has failed.
  bool running() const { return running_ != nullptr; }

  /// The answers of all ranks, or nothing when it fails or has failed. Throws Interrupted.
  std::optional<std::vector<std::string>> ask(const std::string& command);

  /// Ends it for this reason.
  void fail(const std::string& what);

  /// The processes of its ranks; empty after it has failed.
  std::vector<pid_t> pids() const;

 private:
  friend class BenchStage;

  BenchStage& stage_;
  const SubjectCommand command_;
  const int ranks_;
  std::unique_ptr<RunningSubject> running_;
};

class BenchStage {
 public:
  struct Options {
    Environment environment;                                     ///< of the subjects
    std::chrono::milliseconds timeout{std::chrono::minutes(2)};  ///< for one answer of one contender
  };

  /// Make it before any thread. `observer` must outlive it. Throws SystemError.
  BenchStage(Options options, BenchObserver& observer);
  ~BenchStage();

  /// Starts the processes, and waits until they are ready; valid until end_all(). Throws Interrupted.
  Contender& add(SubjectCommand command, int ranks);

  /// Ends all at once, since each takes a moment.
  void end_all();

  /// Tells the observer that something is wrong.
  void problem(const std::string& what);

  /// False after a problem.
  bool all_well() const { return all_well_; }

 private:
  friend class Contender;

  const Options options_;
  BenchObserver& observer_;
  Warden warden_;
  const SignalWatch signals_;
  const TemporaryFolder folder_;  // of all FIFOs
  std::list<Contender> contenders_;
  int started_ = 0;
  bool all_well_ = true;
};

/// Gives each of `count` its turn in each round; each round begins with another. So whatever else the machine
/// does falls on all alike.
void take_turns(int rounds, size_t count, const std::function<void(size_t which)>& turn);

}  // namespace muster
