#pragma once

// What `muster bench ps` says: the table, the lines of JSON, and the bars, which say how much faster than its
// peers Muster is meant to be. Pure values and functions.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/driver/kind.h"
#include "bench/ps/subjects.h"

namespace muster::detail::bench::ps {

/// All that was measured of one case. A subject that failed is missing.
struct Point {
  Case of;
  std::vector<Result> results;

  /// The median of a subject whose results were right; of "grpc", the faster one of its two. Nothing when
  /// there is none.
  std::optional<double> median_us(std::string_view subject) const;

  /// The median of `subject` divided by Muster's: above 1, Muster is faster.
  std::optional<double> ratio(std::string_view subject) const;
};

/// {"bench":"ps","subject":"grpc-stream","transport":"shm","workers":1,"servers":1,"variables":1,
/// "bytes":4096,"median_us":...,"p10_us":...,"p90_us":...,"verified":true}
std::string to_json(const Point& point, const Result& result);

/// The names of the columns, and a line for each point.
std::string table_head();
std::string table_row(const Point& point);

/// A line for each bar whose case was measured: met or not. Empty when there is none.
std::string bars(const std::vector<Point>& points);

}  // namespace muster::detail::bench::ps
