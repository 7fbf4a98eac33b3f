#include "bench/driver/numbers.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail::bench {
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

}  // namespace

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

std::string count_of(size_t number, const std::string& what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

std::optional<double> parse_number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return end == text.c_str() || *end != '\0' ? std::nullopt : std::optional(value);
}

std::optional<std::vector<double>> parse_answer(const std::string& line) {
  const auto words = split(line, ' ');
  if (words.front() != "ok") return std::nullopt;
  std::vector<double> numbers;
  for (size_t i = 1; i < words.size(); ++i) {
    const auto number = parse_number(words[i]);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

std::optional<std::vector<double>> parse_samples(const std::vector<std::string>& lines, int workers) {
  std::vector<double> samples;
  for (int worker = 0; worker < workers; ++worker) {
    const auto numbers = parse_answer(lines[static_cast<size_t>(worker)]);
    if (!numbers || numbers->empty()) return std::nullopt;
    samples.insert(samples.end(), numbers->begin(), numbers->end());
  }
  return samples;
}

std::optional<bool> parse_verification(const std::vector<std::string>& lines, int workers) {
  bool verified = true;
  for (int worker = 0; worker < workers; ++worker) {
    const auto& line = lines[static_cast<size_t>(worker)];
    if (line != "ok 0" && line != "ok 1") return std::nullopt;
    verified &= line == "ok 1";
  }
  return verified;
}

double percentile(std::vector<double> samples, double share) {
  MUSTER_CHECK(!samples.empty());
  std::sort(samples.begin(), samples.end());
  const double position = share * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, samples.size() - 1);
  return std::lerp(samples[below], samples[above], position - static_cast<double>(below));
}

std::string format_microseconds(double value) {
  return fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 1000 ? 1 : 0);
}

std::string format_ratio(double value) {
  return fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

std::string format_cell(std::optional<double> value, int decimals) {
  return value ? fmt::format("{:.{}f}", *value, decimals) : "-";
}

double rounded(double value, int decimals) {
  const double unit = std::pow(10, decimals);
  return std::round(value * unit) / unit;
}

}  // namespace muster::detail::bench
