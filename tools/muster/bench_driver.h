#pragma once

// Rounds and samples: starts all variants of all subjects for a number of ranks, and measures them in turn.
//
// For each size there are several rounds; in each round every variant is asked for a few samples, each round
// beginning with another variant. So whatever else the machine does falls on all alike. A sample is that of
// the slowest rank. While one variant is measured, the others are blocked in read().

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "muster/base/environment.h"
#include "muster/bench_processes.h"
#include "muster/bench_report.h"
#include "muster/bench_subjects.h"
#include "muster/warden.h"

namespace muster {

struct BenchOptions {
  BenchSettings settings;
  std::vector<int> workers;
  std::vector<int64_t> sizes;  ///< are rounded up where the collective needs it
  int rounds = 7;
  int samples = 5;                                             ///< in each round
  std::chrono::milliseconds timeout{std::chrono::minutes(2)};  ///< for one answer of one variant
  Environment environment;                                     ///< of the subjects
};

/// Is told what happens, on the thread of BenchDriver::run().
class BenchObserver {
 public:
  virtual ~BenchObserver() = default;

  /// These will be measured, with another number of ranks than before.
  virtual void on_variants(const std::vector<BenchVariant>& variants) = 0;
  virtual void on_point(const BenchPoint& point) = 0;
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

class BenchDriver {
 public:
  /// Make it before any thread. Throws InvalidArgument when the buffers of all variants would not fit into
  /// memory.
  BenchDriver(BenchOptions options, BenchObserver& observer);

  /// False when a subject failed or gave wrong results. Throws Interrupted after it has ended all processes.
  bool run();

 private:
  struct Contender;

  void run_ranks(int ranks);
  void start(Contender& contender, int ranks);
  BenchPoint measure(std::vector<Contender>& contenders, int ranks, int64_t bytes);
  void begin_size(Contender& contender, int64_t bytes);
  void take_samples(Contender& contender, const std::string& command);
  void problem(Contender& contender, const std::string& what);
  void advance(const Contender& contender, int ranks, int64_t bytes);
  std::vector<int64_t> sizes_for(int ranks) const;

  const BenchOptions options_;
  BenchObserver& observer_;
  const int cores_;
  Warden warden_;
  const SignalWatch signals_;
  const TemporaryFolder folder_;  // of all FIFOs
  std::set<std::string> said_;    // notices that were given
  bool all_well_ = true;
  double work_ = 0;  // in all, in units of cost_of()
  double done_ = 0;
};

}  // namespace muster
