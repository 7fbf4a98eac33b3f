#pragma once

// What `muster bench train` says: what workers answered, put together into samples; the memory of a process;
// the table and the lines of JSON. Pure values and functions, but for memory_of().

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/train/subjects.h"

namespace muster {

/// One turn of all workers of a subject.
struct TrainSample {
  double seconds_a_step = 0;  ///< of the slowest worker
  double loss = 0;            ///< of the last step; this and the rest: the mean over the workers

  // Milliseconds of a step; nothing when the subject can't tell.
  std::optional<double> compute_ms;
  std::optional<double> wait_ms;
  std::optional<double> update_ms;
};

/// From the answers of all workers (bench/peers/train_harness.h) to a turn of `steps` steps of each; 0: they
/// say how many. Nothing when a line is not of that form.
std::optional<TrainSample> parse_train_answers(const std::vector<std::string>& lines, int steps);

/// In MiB.
struct MemoryUse {
  double rss = 0;
  double pss = 0;  ///< a page that n processes map counts 1/n; other subjects map the same libraries
  double own = 0;  ///< of that, what is no file: the heap, and the share of shared memory
};

/// From the text of /proc/PID/smaps_rollup. Nothing when it lacks a field.
std::optional<MemoryUse> parse_memory(std::string_view smaps_rollup);

/// Nothing when the process has gone.
std::optional<MemoryUse> memory_of(pid_t pid);

/// One subject with one number of workers: medians over all samples.
struct TrainResult {
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

/// At least one sample.
TrainResult summarise(const TrainSubject& subject, int64_t batch, const std::vector<TrainSample>& samples);

/// All that was measured of one model with one optimizer. A subject that failed is missing.
struct TrainPoint {
  TrainModelInfo model;
  std::string optimizer;
  std::vector<TrainResult> results;

  /// Null when there is none.
  const TrainResult* find(std::string_view subject, int workers) const;

  /// Muster's samples/s with as many workers, divided by those of `result`. Nothing for Muster itself.
  std::optional<double> ratio(const TrainResult& result) const;

  /// Samples/s divided by workers times those of one worker; of "alone", those of the loop. Nothing for one
  /// worker.
  std::optional<double> scaling(const TrainResult& result) const;
};

/// {"bench":"train","subject":"ddp","model":"a","optimizer":"sgd","workers":2,"samples_per_s":...,"p10":...,
/// "p90":...,"compute_ms":...,"wait_ms":null,"update_ms":...,"rss_mib":...,"pss_mib":...,"own_mib":...,
/// "batch":64,"loss":...}
std::string to_json(const TrainPoint& point, const TrainResult& result);

/// A title, the names of the columns, and a line for each result.
std::string to_table(const TrainPoint& point);

}  // namespace muster
