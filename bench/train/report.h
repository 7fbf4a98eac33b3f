#pragma once

// What is shown of training: what workers answered, put together into samples; the table and the lines of
// JSON. Pure values and functions.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/driver/kind.h"
#include "bench/train/memory.h"
#include "bench/train/subjects.h"

namespace muster::detail::bench::train {

/// A sample from the answers of all workers (bench/peers/train_harness.h) to a turn of `steps` steps of each;
/// 0: they say how many. Its time is that of a step of the slowest worker. Its parts are means over the
/// workers: loss, and compute_ms, wait_ms and update_ms of a step where the subject can tell. Nothing when a
/// line is not of that form.
std::optional<Sample> parse_answers(const std::vector<std::string>& lines, int steps);

/// One subject with one number of workers: medians over all samples.
struct Result {
  std::string subject;
  int workers = 1;
  double samples_per_s = 0;  ///< of all workers together
  double p10 = 0;            ///< of the samples_per_s of each turn
  double p90 = 0;
  std::optional<double> compute_ms;
  std::optional<double> wait_ms;
  std::optional<double> update_ms;
  double loss = 0;                  ///< of the last turn
  std::optional<MemoryUse> memory;  ///< of one worker: the mean
};

Result summarise(const Series& series, int64_t batch);

/// All that was measured of one model with one optimizer. A subject that failed is missing.
struct Point {
  Model model;
  std::string optimizer;
  std::vector<Result> results;

  /// Null when there is none.
  const Result* find(std::string_view subject, int workers) const;

  /// Muster's samples/s with as many workers, divided by those of `result`. Nothing for Muster itself.
  std::optional<double> ratio(const Result& result) const;

  /// Samples/s divided by workers times those of one worker; of "alone", those of the loop. Nothing for one
  /// worker.
  std::optional<double> scaling(const Result& result) const;
};

/// {"bench":"train","subject":"ddp","model":"a","optimizer":"sgd","workers":2,"samples_per_s":...,"p10":...,
/// "p90":...,"compute_ms":...,"wait_ms":null,"update_ms":...,"rss_mib":...,"pss_mib":...,"own_mib":...,
/// "batch":64,"loss":...}
std::string to_json(const Point& point, const Result& result);

/// A title, the names of the columns, and a line for each result.
std::string to_table(const Point& point);

}  // namespace muster::detail::bench::train
