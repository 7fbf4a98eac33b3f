#pragma once

// Rounds and samples of a collective: starts all variants of all subjects for a number of ranks, and measures
// them in turn (driver/stage.h). For each size there are several rounds; in each round every variant is asked
// for a few samples. A sample is that of the slowest rank.

#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "bench/collective/report.h"
#include "bench/collective/subjects.h"
#include "bench/driver/stage.h"
#include "muster/base/environment.h"

namespace muster {

struct BenchOptions {
  BenchSettings settings;
  std::vector<int> workers;
  std::vector<int64_t> sizes;  ///< are rounded up where the collective needs it
  int rounds = 7;
  int samples = 5;  ///< in each round
  BenchStage::Options stage;

  /// These will be measured, with another number of ranks than before.
  std::function<void(const std::vector<BenchVariant>&)> on_variants;
  std::function<void(const BenchPoint&)> on_point;
};

class BenchDriver {
 public:
  /// Make it before any thread. Throws InvalidArgument when the buffers of all variants would not fit into
  /// memory.
  BenchDriver(BenchOptions options, BenchObserver& observer);

  /// False when a subject failed or gave wrong results. Throws Interrupted.
  bool run();

 private:
  struct Entry;

  void run_ranks(int ranks);
  BenchPoint measure(std::vector<Entry>& entries, int ranks, int64_t bytes);
  void begin_size(Entry& entry, int64_t bytes);
  void take_samples(Entry& entry, const std::string& command);
  void advance(const Contender& contender, int64_t bytes);
  std::vector<int64_t> sizes_for(int ranks) const;

  const BenchOptions options_;
  BenchObserver& observer_;
  const int cores_;
  BenchStage stage_;
  std::set<std::string> said_;  // notices that were given
  double work_ = 0;             // in all, in units of cost_of()
  double done_ = 0;
};

}  // namespace muster
