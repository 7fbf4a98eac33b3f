#pragma once

// `muster bench ps`: pushes and pulls. All subjects of one case are started. A turn is a number of samples,
// each of as many steps as take about as long for every subject; then the subject verifies what it holds.

#include <optional>
#include <string>
#include <vector>

#include "bench/driver/kind.h"
#include "bench/ps/report.h"
#include "bench/ps/subjects.h"

namespace muster::detail::bench::ps {

class Bench : public Kind {
 public:
  Bench() : Kind({1, 2}) {}

  void add_flags(CLI::App& app) override;
  void check() override;
  std::string program() const override { return "muster_bench_ps"; }
  std::vector<PeerState> peers(const Surroundings& surroundings) override;
  std::string title() const override;
  std::vector<Group> groups(const Surroundings& surroundings, const std::vector<std::string>& peers) override;
  std::string closing() const override;

 private:
  Turn take_turn(RunningSubject& subject, std::optional<double> fastest_us) const;
  int batch_of(int workers, double fastest_us) const;
  void report(const Point& point, Output& output);

  Settings settings_;
  Choice choice_ = {.transports = transports(), .servers = {1, 2}, .variables = {1, 1000}};
  std::string sizes_ = "4K,64K,1M,4M,16M,64M";
  double seconds_ = 0.1;  // of a turn, about
  std::vector<Point> points_;
};

}  // namespace muster::detail::bench::ps
