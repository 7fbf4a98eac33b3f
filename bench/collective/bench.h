#pragma once

// `muster bench allreduce` and the other collectives: all variants of all subjects are started for a number
// of ranks, and measured for one size after the other. A sample is that of the slowest rank.

#include <optional>
#include <string>
#include <vector>

#include "bench/collective/report.h"
#include "bench/collective/subjects.h"
#include "bench/driver/kind.h"

namespace muster::detail::bench::collective {

class Bench : public Kind {
 public:
  Bench() : Kind({2}) {}

  void add_flags(CLI::App& app) override;
  void check() override;
  std::string program() const override { return "muster_bench_rank"; }
  std::vector<PeerState> peers(const Surroundings& surroundings) override;
  std::string title() const override;
  std::vector<Group> groups(const Surroundings& surroundings, const std::vector<std::string>& peers) override;
  std::string plot() const override;

  /// Whether --explain was given: to say which algorithm Muster chooses, and to measure nothing.
  bool explains() const { return explains_; }

 private:
  std::vector<int64_t> sizes_for(int ranks) const;
  void check_memory(size_t variants, int ranks, int64_t bytes) const;
  Turn take_turn(RunningSubject& subject, int64_t bytes, std::optional<double> fastest_us) const;
  Turn ask(RunningSubject& subject, const char* verb, int64_t bytes, std::optional<double> fastest_us) const;
  void report(const Point& point, const std::vector<SubjectCommand>& subjects, Output& output);

  Settings settings_;
  int samples_ = 5;  // of a turn
  std::string sizes_ = "8:64M";
  std::string transport_ = "shm";
  std::string plot_value_ = "time";
  bool explains_ = false;
  std::string head_;  // of the table, as it was printed last
  std::vector<Point> points_;
};

}  // namespace muster::detail::bench::collective
