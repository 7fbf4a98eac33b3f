#include "bench/collective/report.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster {
namespace {

constexpr int64_t kLargestSize = int64_t{1} << 40;
constexpr std::string_view kUnits = "KMG";

int64_t parse_size(const std::string& text) {
  std::string_view digits = text;
  int64_t unit = 1;
  if (const size_t found = text.empty() ? std::string::npos : kUnits.find(text.back());
      found != std::string::npos) {
    unit = int64_t{1} << (10 * (found + 1));
    digits.remove_suffix(1);
  }
  const auto value = parse_integer(digits);
  if (!value || *value < 1 || *value > kLargestSize / unit)
    raise<InvalidArgument>("--sizes: '{}' is not a number of bytes such as 8, 64K or 256M", text);
  return *value * unit;
}

std::string format_bandwidth(double bytes, double microseconds) {
  return fmt::format("{:.2f}", bytes / microseconds / 1e3);
}

}  // namespace

const std::vector<std::string>& bench_collectives() {
  static const std::vector<std::string> collectives = {"allreduce", "reducescatter", "allgather", "broadcast",
                                                       "reduce",    "alltoall",      "barrier"};
  return collectives;
}

std::vector<int64_t> parse_sizes(const std::string& text) {
  std::set<int64_t> sizes;
  for (const auto& part : split(text, ',')) {
    const auto ends = split(part, ':');
    if (ends.size() > 2)
      raise<InvalidArgument>("--sizes: '{}' is not a range such as 8:256M, the smallest and the largest",
                             part);
    const int64_t first = parse_size(ends.front());
    const int64_t last = parse_size(ends.back());
    if (first > last) raise<InvalidArgument>("--sizes: '{}' begins above its end", part);
    for (int64_t size = first; size <= last; size *= 2) sizes.insert(size);
  }
  return {sizes.begin(), sizes.end()};
}

std::string format_size(int64_t bytes) {
  for (size_t unit = kUnits.size(); unit > 0; --unit) {
    const int64_t size = int64_t{1} << (10 * unit);
    if (bytes >= size && bytes % size == 0) return fmt::format("{}{}", bytes / size, kUnits[unit - 1]);
  }
  return std::to_string(bytes);
}

bool is_in_place(std::string_view collective) {
  return collective != "reducescatter" && collective != "allgather" && collective != "alltoall";
}

int64_t round_up(std::string_view collective, int64_t bytes, int ranks) {
  const int64_t unit = static_cast<int64_t>(sizeof(float)) * (is_in_place(collective) ? 1 : ranks);
  return (bytes + unit - 1) / unit * unit;
}

double percentile(std::vector<double> samples, double share) {
  MUSTER_CHECK(!samples.empty());
  std::sort(samples.begin(), samples.end());
  const double place = share * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, samples.size() - 1);
  return std::lerp(samples[below], samples[above], place - static_cast<double>(below));
}

std::string format_microseconds(double value) {
  return fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 1000 ? 1 : 0);
}

std::string format_ratio(double value) {
  return fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

double round_microseconds(double value) {
  return std::round(value * 1e3) / 1e3;
}

double bus_factor(std::string_view collective, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (collective == "allreduce") return 2 * others;
  if (!is_in_place(collective)) return others;
  return collective == "barrier" ? 0 : 1;
}

std::string describe(const BenchVariant& of, size_t ranks) {
  return fmt::format("{} ({}), {} {}", of.subject, of.variant, ranks, ranks == 1 ? "rank" : "ranks");
}

const BenchResult* best_of(const BenchPoint& point, std::string_view subject) {
  const BenchResult* best = nullptr;
  for (const auto& result : point.results) {
    if (result.of.subject != subject || !result.verified) continue;
    if (best == nullptr || result.median_us < best->median_us) best = &result;
  }
  return best;
}

std::string to_json(const std::string& collective, const BenchPoint& point, const BenchResult& result) {
  return nlohmann::ordered_json{{"bench", collective},
                                {"subject", result.of.subject},
                                {"variant", result.of.variant},
                                {"ranks", point.ranks},
                                {"bytes", point.bytes},
                                {"median_us", round_microseconds(result.median_us)},
                                {"p10_us", round_microseconds(result.p10_us)},
                                {"p90_us", round_microseconds(result.p90_us)},
                                {"verified", result.verified}}
      .dump();
}

BenchTable::BenchTable(std::string collective, const std::vector<BenchVariant>& variants)
    : collective_(std::move(collective)) {
  for (const auto& each : variants) {
    if (subjects_.empty() || subjects_.back().name != each.subject)
      subjects_.push_back({.name = each.subject, .variants = {}});
    subjects_.back().variants.push_back(each.variant);
  }
}

std::string BenchTable::head() const {
  std::string text;
  for (const auto& subject : subjects_) {
    text += fmt::format("{:>9}  ", subject.name);
    for (size_t i = 0; i < subject.variants.size(); ++i) {
      if (subject.variants.size() == 1) {
        text += subject.variants[i];
      } else {
        text += fmt::format("{}{} {}", i > 0 ? "   " : "", static_cast<char>('a' + i), subject.variants[i]);
      }
    }
    text += '\n';
  }
  text += "\nranks    bytes";
  for (const auto& subject : subjects_) {
    text += fmt::format("  {:>9} us", subject.name);
    if (&subject != &subjects_.front())
      text += "      x";
    else if (collective_ != "barrier")
      text += "  alg GB/s  bus GB/s";
  }
  return text + '\n';
}

std::string BenchTable::row(const BenchPoint& point) const {
  const BenchResult* first = subjects_.empty() ? nullptr : best_of(point, subjects_.front().name);
  std::string text =
      fmt::format("{:>5} {:>8}", point.ranks, collective_ == "barrier" ? "-" : format_size(point.bytes));
  for (const auto& subject : subjects_) {
    const BenchResult* best = best_of(point, subject.name);
    text += fmt::format("  {:>12}", cell(subject, point));
    if (&subject != &subjects_.front()) {
      const bool both = best != nullptr && first != nullptr;
      text += fmt::format(" {:>6}", both ? format_ratio(best->median_us / first->median_us) : "-");
    } else if (collective_ != "barrier") {
      const auto bytes = static_cast<double>(point.bytes);
      const double bus = bytes * bus_factor(collective_, point.ranks);
      text += fmt::format("  {:>8}  {:>8}", best != nullptr ? format_bandwidth(bytes, best->median_us) : "-",
                          best != nullptr ? format_bandwidth(bus, best->median_us) : "-");
    }
  }
  return text + '\n';
}

// The letter stands after the digits, so that the numbers of a column stay in line.
std::string BenchTable::cell(const Subject& subject, const BenchPoint& point) const {
  const BenchResult* best = best_of(point, subject.name);
  const bool several = subject.variants.size() > 1;
  if (best == nullptr) {
    const bool wrong = std::any_of(point.results.begin(), point.results.end(),
                                   [&](const BenchResult& each) { return each.of.subject == subject.name; });
    return std::string(wrong ? "wrong" : "-") + (several ? "  " : "");
  }
  std::string time = format_microseconds(best->median_us);
  if (!several) return time;
  const auto found = std::find(subject.variants.begin(), subject.variants.end(), best->of.variant);
  return fmt::format("{} {}", time, static_cast<char>('a' + (found - subject.variants.begin())));
}

}  // namespace muster
