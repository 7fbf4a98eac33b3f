#include "bench/ps/report.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/driver/numbers.h"

namespace muster::detail::bench::ps {
namespace {

constexpr std::array<const char*, 5> kSubjects = {"muster", "grpc-unary", "grpc-stream", "torch-rpc",
                                                  "floor"};
constexpr std::array<const char*, 3> kRivals = {"grpc", "torch-rpc", "floor"};

/// With one worker, one server and one variable.
struct Bar {
  const char* transport;
  int64_t bytes;
  const char* rival;
  double least;  ///< of the ratio
};

constexpr std::array<Bar, 9> kBars = {{{"shm", 4 << 10, "grpc", 10},
                                       {"shm", 16 << 20, "grpc", 6},
                                       {"shm", 16 << 20, "torch-rpc", 2},
                                       {"shm", 16 << 20, "floor", 0.7},
                                       {"shm", 64 << 20, "grpc", 6},
                                       {"shm", 64 << 20, "torch-rpc", 2},
                                       {"shm", 64 << 20, "floor", 0.7},
                                       {"tcp", 16 << 20, "grpc", 1.8},
                                       {"tcp", 16 << 20, "torch-rpc", 1.8}}};

// What a thousand variables of 4 KiB may cost, in times of one of 4 MiB.
constexpr double kMostForAThousand = 2;

bool is_of(const std::string& subject, std::string_view group) {
  return subject == group || (group == "grpc" && subject.starts_with("grpc-"));
}

// Of a subject that gave wrong results, that.
std::string time_cell(const Point& point, const std::string& subject) {
  const bool wrong = std::any_of(point.results.begin(), point.results.end(), [&](const Result& each) {
    return each.of.subject == subject && !each.verified;
  });
  if (wrong) return "wrong";
  const auto time = point.median_us(subject);
  return time ? format_microseconds(*time) : "-";
}

const Point* find(const std::vector<Point>& points, const Case& of) {
  const auto found =
      std::find_if(points.begin(), points.end(), [&](const Point& each) { return each.of == of; });
  return found != points.end() ? &*found : nullptr;
}

const char* met_or_not(bool met) {
  return met ? "met" : "not met";
}

std::string bar_of_a_thousand(const std::vector<Point>& points, const std::string& transport) {
  const Point* thousand = find(points, {transport, 1, 1, 1000, 4 << 10});
  const Point* one = find(points, {transport, 1, 1, 1, 4 << 20});
  if (thousand == nullptr || one == nullptr) return "";
  const auto time = thousand->median_us("muster");
  const auto time_of_one = one->median_us("muster");
  if (!time || !time_of_one) return "";
  const double times = *time / *time_of_one;
  return fmt::format("  {}  {:>7}  {:<9} {:>6}  at most  {:<4} {}\n", transport, "1000x4K", "1x4M",
                     format_ratio(times), kMostForAThousand, met_or_not(times <= kMostForAThousand));
}

}  // namespace

std::optional<double> Point::median_us(std::string_view subject) const {
  std::optional<double> best;
  for (const auto& result : results) {
    if (result.verified && is_of(result.of.subject, subject))
      best = std::min(best.value_or(result.median_us), result.median_us);
  }
  return best;
}

std::optional<double> Point::ratio(std::string_view subject) const {
  const auto rival = median_us(subject);
  const auto muster = median_us("muster");
  if (!rival || !muster) return std::nullopt;
  return *rival / *muster;
}

std::string to_json(const Point& point, const Result& result) {
  return nlohmann::ordered_json{{"bench", "ps"},
                                {"subject", result.of.subject},
                                {"transport", point.of.transport},
                                {"workers", point.of.workers},
                                {"servers", point.of.servers},
                                {"variables", point.of.variables},
                                {"bytes", point.of.bytes},
                                {"median_us", rounded(result.median_us)},
                                {"p10_us", rounded(result.p10_us)},
                                {"p90_us", rounded(result.p90_us)},
                                {"verified", result.verified}}
      .dump();
}

std::string table_head() {
  std::string text = "workers servers variables  bytes";
  for (const char* subject : kSubjects) text += fmt::format(" {:>14}", fmt::format("{} us", subject));
  for (const char* rival : kRivals) text += fmt::format(" {:>11}", fmt::format("x {}", rival));
  return text + '\n';
}

std::string table_row(const Point& point) {
  std::string text = fmt::format("{:>7} {:>7} {:>9} {:>6}", point.of.workers, point.of.servers,
                                 point.of.variables, format_size(point.of.bytes));
  for (const char* subject : kSubjects) text += fmt::format(" {:>14}", time_cell(point, subject));
  for (const char* rival : kRivals) {
    const auto ratio = point.ratio(rival);
    text += fmt::format(" {:>11}", ratio ? format_ratio(*ratio) : "-");
  }
  if (const auto ratio = point.ratio("baseline"))
    text += fmt::format("  baseline {} us, x {}", time_cell(point, "baseline"), format_ratio(*ratio));
  return text + '\n';
}

std::string bars(const std::vector<Point>& points) {
  std::string text;
  for (const auto& bar : kBars) {
    const Point* point = find(points, {bar.transport, 1, 1, 1, bar.bytes});
    const auto ratio = point != nullptr ? point->ratio(bar.rival) : std::nullopt;
    if (!ratio) continue;
    text +=
        fmt::format("  {}  {:>7}  {:<9} {:>6}  at least {:<4} {}\n", bar.transport, format_size(bar.bytes),
                    bar.rival, format_ratio(*ratio), bar.least, met_or_not(*ratio >= bar.least));
  }
  for (const auto& transport : transports()) text += bar_of_a_thousand(points, transport);
  return text;
}

}  // namespace muster::detail::bench::ps
