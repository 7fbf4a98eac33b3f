#pragma once

// What `muster bench session` says: the table, the lines of JSON, and the bars, which say what Muster is
// meant to reach. Pure values and functions.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/driver/kind.h"
#include "bench/session/subjects.h"

namespace muster::detail::bench::session {

/// All that was measured of one case. A subject that failed is missing.
struct Point {
  Case of;
  std::vector<Result> results;

  /// The median of a subject whose results were right. Nothing when there is none.
  std::optional<double> median_us(std::string_view subject) const;

  /// The median of `subject` divided by that of `reference`: above 1, the latter is faster.
  std::optional<double> ratio(std::string_view subject, std::string_view reference) const;

  /// How many of what is counted (Case::unit) a second has, at the median.
  std::optional<double> per_second(std::string_view subject) const;

  /// "executor", "16x1024 data"; of a transfer "64M"
  std::string title() const;
};

/// {"bench":"session","case":"graph","of":"100000","subject":"muster","median_us":...,"p10_us":...,
/// "p90_us":...,"per_s":...,"unit":"nodes","verified":true}; without a unit both are null.
std::string to_json(const Point& point, const Result& result);

/// The names of the columns, and a line for each result of a point.
std::string table_head();
std::string table_rows(const Point& point);

/// A line for each bar whose case was measured: met or not. Empty when there is none.
std::string bars(const std::vector<Point>& points);

}  // namespace muster::detail::bench::session
