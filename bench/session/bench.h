#pragma once

// `muster bench session`: graphs in one process and on clusters. All subjects of one case are started. A turn
// is a number of runs, or of steps of training, that take about as long for every subject.

#include <optional>
#include <string>
#include <vector>

#include "bench/driver/kind.h"
#include "bench/session/report.h"
#include "bench/session/subjects.h"

namespace muster::detail::bench::session {

class Bench : public Kind {
 public:
  Bench() : Kind({1, 2, 8}) {}

  void add_flags(CLI::App& app) override;
  void check() override;
  std::string program() const override { return "muster_bench_session"; }
  std::vector<PeerState> peers(const Surroundings& surroundings) override;
  std::string title() const override;
  std::vector<Group> groups(const Surroundings& surroundings, const std::vector<std::string>& peers) override;
  std::string closing() const override;

 private:
  Turn take_timed_turn(RunningSubject& subject, std::optional<double> fastest_us) const;
  Turn take_training_turn(RunningSubject& subject, std::optional<double> fastest_us) const;
  void report(const Point& point, Output& output);

  Settings settings_;
  Choice choice_ = {.names = case_names(),
                    .tasks = {},
                    .shapes = {"16x1024", "1024x16", "1024x1024"},
                    .sizes = {},
                    .nodes = {10'000, 100'000}};
  std::string sizes_ = "64M";
  double seconds_ = 0.5;  // of a turn, about
  std::vector<Point> points_;
};

}  // namespace muster::detail::bench::session
