#pragma once

// Rounds and samples of training. All subjects of one model and optimizer are started, for all numbers of
// workers, and measured in turn (driver/stage.h). A turn is a number of steps that take about as long for
// every subject; it gives one sample.

#include <functional>
#include <string>
#include <vector>

#include "bench/driver/stage.h"
#include "bench/train/report.h"
#include "bench/train/subjects.h"

namespace muster {

struct TrainOptions {
  TrainSettings settings;
  std::vector<TrainModelInfo> models;
  std::vector<std::string> optimizers;
  std::vector<int> workers = {1, 2};
  int rounds = 7;
  double seconds = 1;  ///< of one turn, about
  BenchStage::Options stage;
  std::function<void(const TrainPoint&)> on_point;
};

class TrainDriver {
 public:
  /// Make it before any thread.
  TrainDriver(TrainOptions options, BenchObserver& observer);

  /// False when a subject failed, or its loss was not a finite number. Throws Interrupted.
  bool run();

 private:
  struct Entry;

  TrainPoint measure(const TrainModelInfo& model, const std::string& optimizer);
  void take_turn(Entry& entry, int warmup, int steps);
  void take_turn(Entry& entry, const std::string& command, int steps);
  void advance(const std::string& what, const Contender& contender);
  int steps_of_turn(const Entry& entry) const;

  const TrainOptions options_;
  BenchObserver& observer_;
  BenchStage stage_;
  double work_ = 0;  // turns in all
  double done_ = 0;
};

}  // namespace muster
