#pragma once

// Rounds and samples of pushes and pulls. All subjects of one case are started, and measured in turn
// (driver/stage.h). A turn is a number of samples, each of as many steps as take about as long for every
// subject; then the subject verifies what it holds.

#include <functional>
#include <string>
#include <vector>

#include "bench/driver/stage.h"
#include "bench/ps/report.h"
#include "bench/ps/subjects.h"

namespace muster {

struct PsOptions {
  PsSettings settings;
  std::vector<PsCase> cases;
  int rounds = 7;
  double seconds = 0.1;  ///< of one turn, about
  BenchStage::Options stage;
  std::function<void(const PsPoint&)> on_point;
};

class PsDriver {
 public:
  /// Make it before any thread.
  PsDriver(PsOptions options, BenchObserver& observer);

  /// False when a subject failed or gave wrong results. Throws Interrupted.
  bool run();

 private:
  struct Entry;

  PsPoint measure(const PsCase& of);
  void take_turn(Entry& entry, int samples, int batch);
  void verify(Entry& entry);
  void advance(const PsCase& of, const std::string& what);
  int batch_of(const Entry& entry) const;

  const PsOptions options_;
  BenchObserver& observer_;
  BenchStage stage_;
  double work_ = 0;  // turns in all
  double done_ = 0;
};

}  // namespace muster
