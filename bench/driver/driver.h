#pragma once

// The driver: starts the subjects of a group, gives each its turns in each measurement, and hands the samples
// to the kind's report. In each round every subject has a turn, in an order of the round's own, so that
// whatever else the machine does, and whatever the subject before leaves in the caches, falls on all alike.
// While one has its turn, the others are blocked in read(). One that fails is left out of the rest, which
// goes on.
//
// One thread.

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "bench/driver/kind.h"
#include "muster/orphan_reaper.h"

namespace muster::detail::bench {

/// Measures all that the kind's flags ask for. The exit code: 0, 1 when a subject failed or gave wrong
/// results, 128 + the signal that stopped it. Make no thread before it. Throws InvalidArgument, SystemError.
int run(Kind& kind);

/// The order of turns in a round (0 and up) of `count` subjects. Over `count` rounds, or twice as many where
/// `count` is odd, each subject is once, or twice, in each place, and follows each other subject as often: a
/// Latin square that is balanced for carry-over (E. J. Williams, 1949).
std::vector<size_t> order_of_turns(size_t round, size_t count);

/// Gives each of `count` its turn in each round, in the round's order.
void take_turns(int rounds, size_t count, const std::function<void(size_t which)>& turn);

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

class Driver {
 public:
  struct Options {
    int rounds = 1;
    Environment environment;            ///< of the subjects
    std::chrono::milliseconds timeout;  ///< for one answer of one subject
  };

  /// `output` must outlive it. Make it before any thread. Throws SystemError.
  Driver(Options options, Output& output);

  /// False when a subject failed or gave wrong results. Throws Interrupted.
  bool run(const std::vector<Group>& groups);

 private:
  struct Entry;

  void run(const Group& group);
  std::unique_ptr<RunningSubject> start(const SubjectCommand& command);
  void measure(const Measurement& measurement, std::vector<Entry>& entries);
  void take_turn(const Measurement& measurement, Entry& entry);
  void problem(const std::string& what);

  const Options options_;
  Output& output_;
  OrphanReaper reaper_;
  const SignalWatch signals_;
  const TemporaryFolder folder_;  // of all FIFOs
  int started_ = 0;
  bool all_well_ = true;
  std::set<std::string> said_;  // notices that were given
  double work_ = 0;             // in all, as Measurement::cost counts it
  double done_ = 0;
};

}  // namespace muster::detail::bench
