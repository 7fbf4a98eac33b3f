#pragma once

// `muster bench train`: all subjects of one model and optimizer are started, for all numbers of workers. A
// turn is a number of steps that take about as long for every subject; it gives one sample.

#include <optional>
#include <string>
#include <vector>

#include "bench/driver/kind.h"
#include "bench/train/report.h"
#include "bench/train/subjects.h"

namespace muster::detail::bench::train {

class Bench : public Kind {
 public:
  Bench();

  void add_flags(CLI::App& app) override;
  void check() override;
  std::string program() const override { return "muster_bench_train"; }
  std::vector<PeerState> peers(const Surroundings& surroundings) override;
  std::string title() const override;
  std::vector<Group> groups(const Surroundings& surroundings, const std::vector<std::string>& peers) override;
  std::string plot() const override;

 private:
  Turn take_turn(RunningSubject& subject, std::optional<double> fastest_us) const;
  void report(const Point& point, Output& output);

  Settings settings_;
  std::vector<std::string> models_;
  std::vector<std::string> optimizers_;
  double seconds_ = 1;  // of a turn, about
  std::vector<Point> points_;
};

}  // namespace muster::detail::bench::train
