#include "bench/session/report.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/driver/numbers.h"
#include "muster/base/text.h"

namespace muster::detail::bench::session {
namespace {

enum class Measure {
  kTime,       // milliseconds of the subject, at most so many
  kShare,      // its time divided by the rival's, at most so much
  kSpeed,      // the rival's time divided by its, at least so much
  kPerSecond,  // millions a second, at least so many
};

struct Bar {
  const char* name;  ///< of the case
  const char* of;    ///< any when it is empty
  const char* subject;
  Measure measure;
  const char* rival;
  double limit;
};

constexpr std::array<Bar, 14> kBars = {{
    {"operators", "", "muster", Measure::kShare, "loop", 1.3},
    {"cnn", "", "muster", Measure::kShare, "loop", 1},
    {"cnn", "", "muster", Measure::kShare, "loop-kept", 1},
    {"executor", "16x1024", "muster", Measure::kPerSecond, "", 5},
    {"executor", "1024x16", "muster", Measure::kPerSecond, "", 5},
    {"executor", "1024x1024", "muster", Measure::kPerSecond, "", 5},
    {"step", "1", "muster", Measure::kTime, "", 0.2},
    {"step", "2", "muster", Measure::kTime, "", 0.3},
    {"step", "8", "muster", Measure::kTime, "", 2},
    {"transfer", "67108864", "muster", Measure::kSpeed, "grpc", 5},
    {"transfer", "67108864", "muster", Measure::kSpeed, "torch-rpc", 2},
    {"graph", "100000", "muster", Measure::kTime, "", 3000},
    {"pipeline", "", "1f1b", Measure::kSpeed, "one-task", 1.68},
    {"pipeline", "", "zero-bubble", Measure::kSpeed, "one-task", 1.78},
}};
// The samples of replicas, as a share of those of ps-sync.
constexpr double kLeastOfReplicas = 0.7;

// Ten times the nodes take ten times as long, or a little more: the rest is what caches do not hold.
constexpr double kMostForTenTimes = 12;

std::optional<double> value_of(const Bar& bar, const Point& point) {
  switch (bar.measure) {
    case Measure::kTime:
      if (const auto us = point.median_us(bar.subject)) return *us / 1e3;
      return std::nullopt;
    case Measure::kShare:
      return point.ratio(bar.subject, bar.rival);
    case Measure::kSpeed:
      return point.ratio(bar.rival, bar.subject);
    case Measure::kPerSecond:
      if (const auto count = point.per_second(bar.subject)) return *count / 1e6;
      return std::nullopt;
  }
  return std::nullopt;
}

bool is_of(const Bar& bar, const Point& point) {
  if (point.of.name != bar.name) return false;
  return point.of.of == bar.of || point.of.of.starts_with(std::string(bar.of) + " ");
}

std::string line(const std::string& what, const std::string& measure, double value, bool at_most,
                 double limit) {
  return fmt::format("  {:<28} {:<32} {:>8}  {} {:<6} {}\n", what, measure, format_ratio(value),
                     at_most ? "at most " : "at least", limit,
                     (at_most ? value <= limit : value >= limit) ? "met" : "not met");
}

std::string measure_of(const Bar& bar, const Point& point) {
  switch (bar.measure) {
    case Measure::kTime:
      return "ms";
    case Measure::kShare:
      return fmt::format("times the time of {}", bar.rival);
    case Measure::kSpeed:
      return fmt::format("times as fast as {}", bar.rival);
    case Measure::kPerSecond:
      return fmt::format("million {} a second", point.of.unit);
  }
  return "";
}

// What belongs to no single point, or is a share of another kind's.
std::string bar_of_linear_graphs(const std::vector<Point>& points) {
  const auto time_of = [&](const char* nodes) -> std::optional<double> {
    for (const auto& point : points) {
      if (point.of.name == "graph" && point.of.of == nodes) return point.median_us("muster");
    }
    return std::nullopt;
  };
  const auto small = time_of("10000");
  const auto large = time_of("100000");
  if (!small || !large) return "";
  return line("graph 100000", "times the time of 10000 nodes", *large / *small, true, kMostForTenTimes);
}

std::string bar_of_replicas(const std::vector<Point>& points) {
  for (const auto& point : points) {
    const auto speed = point.of.name == "replicas" ? point.ratio("ps-sync", "muster") : std::nullopt;
    if (speed) return line("replicas", "of the samples/s of ps-sync", *speed, false, kLeastOfReplicas);
  }
  return "";
}

std::string rate(std::optional<double> per_second, const std::string& unit) {
  if (!per_second) return "-";
  const bool is_large = *per_second >= 1e6;
  return fmt::format("{:.{}f}{} {}/s", is_large ? *per_second / 1e6 : *per_second, is_large ? 2 : 0,
                     is_large ? "M" : "", unit);
}

}  // namespace

std::optional<double> Point::median_us(std::string_view subject) const {
  for (const auto& result : results) {
    if (result.verified && result.of.subject == subject) return result.median_us;
  }
  return std::nullopt;
}

std::optional<double> Point::ratio(std::string_view subject, std::string_view reference) const {
  const auto time = median_us(subject);
  const auto other = median_us(reference);
  if (!time || !other) return std::nullopt;
  return *time / *other;
}

std::optional<double> Point::per_second(std::string_view subject) const {
  const auto us = median_us(subject);
  if (!us || of.items == 0) return std::nullopt;
  return of.items / *us * 1e6;
}

std::string Point::title() const {
  if (of.of.empty()) return of.name;
  if (of.name == "transfer") return fmt::format("transfer {}", format_size(parse_integer(of.of).value_or(0)));
  return fmt::format("{} {}", of.name, of.of);
}

std::string to_json(const Point& point, const Result& result) {
  nlohmann::ordered_json line = {{"bench", "session"},
                                 {"case", point.of.name},
                                 {"of", point.of.of},
                                 {"subject", result.of.subject},
                                 {"median_us", rounded(result.median_us)},
                                 {"p10_us", rounded(result.p10_us)},
                                 {"p90_us", rounded(result.p90_us)},
                                 {"per_s", nullptr},
                                 {"unit", nullptr},
                                 {"verified", result.verified}};
  if (point.of.items > 0) {
    line["per_s"] = rounded(point.of.items / result.median_us * 1e6, 0);
    line["unit"] = point.of.unit;
  }
  return line.dump();
}

std::string table_head() {
  return fmt::format("{:<28} {:<12} {:>12} {:>12} {:>12} {:>22} {:>6}\n", "case", "subject", "median us",
                     "p10 us", "p90 us", "", "x");
}

std::string table_rows(const Point& point) {
  std::string text;
  for (const auto& result : point.results) {
    const auto& subject = result.of.subject;
    const auto& first = point.results.front().of.subject;
    const auto ratio = subject == first ? std::nullopt : point.ratio(subject, first);
    text += fmt::format("{:<28} {:<12} {:>12} {:>12} {:>12} {:>22} {:>6}\n", point.title(), subject,
                        result.verified ? format_microseconds(result.median_us) : "wrong",
                        format_microseconds(result.p10_us), format_microseconds(result.p90_us),
                        rate(point.per_second(subject), point.of.unit), ratio ? format_ratio(*ratio) : "-");
  }
  return text;
}

std::string bars(const std::vector<Point>& points) {
  std::string text;
  for (const auto& point : points) {
    for (const auto& bar : kBars) {
      const auto value = is_of(bar, point) ? value_of(bar, point) : std::nullopt;
      if (!value) continue;
      const bool at_most = bar.measure == Measure::kTime || bar.measure == Measure::kShare;
      const std::string what =
          point.of.name == "pipeline" ? fmt::format("pipeline {}", bar.subject) : point.title();
      text += line(what, measure_of(bar, point), *value, at_most, bar.limit);
    }
  }
  return text + bar_of_linear_graphs(points) + bar_of_replicas(points);
}

}  // namespace muster::detail::bench::session
