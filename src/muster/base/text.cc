#include "muster/base/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace muster::detail {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> cost(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replace = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

std::string suggestion(std::string_view word, const std::vector<std::string>& known) {
  const std::string* best = nullptr;
  // Of a short word half must be right: --lr is not a misspelt --ps.
  const auto letters =
      static_cast<int>(std::count_if(word.begin(), word.end(), [](char c) { return c != '-'; }));
  const int most = std::min(std::max(2, static_cast<int>(word.size()) / 3), std::max(1, letters / 2));
  int best_distance = most + 1;
  for (const auto& candidate : known) {
    const int distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best != nullptr ? fmt::format("; did you mean {}?", *best) : "";
}

std::string first_columns(std::string_view line, size_t columns) {
  std::string kept;
  size_t used = 0;
  for (size_t at = 0; at < line.size();) {
    size_t end = at + 1;
    const bool is_sequence = line[at] == '\x1b' && end < line.size() && line[end] == '[';
    if (is_sequence) {
      ++end;
      while (end < line.size() && (line[end] < '@' || line[end] > '~')) ++end;
      end = std::min(end + 1, line.size());
    } else {
      while (end < line.size() && (static_cast<unsigned char>(line[end]) & 0xC0U) == 0x80U) ++end;
      ++used;
    }
    if (is_sequence || used <= columns) kept += line.substr(at, end - at);
    at = end;
  }
  return kept;
}

std::string shell_quoted(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,=@%+";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::optional<long long> parse_integer(std::string_view text) {
  long long value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::optional<double> parse_real(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<size_t> parse_bytes(std::string_view text) {
  constexpr std::string_view kUnits = "KMG";
  const size_t unit = text.empty() ? std::string_view::npos : kUnits.find(text.back());
  const int shift = unit == std::string_view::npos ? 0 : 10 * (static_cast<int>(unit) + 1);
  if (shift > 0) text.remove_suffix(1);
  const auto value = parse_integer(text);
  if (!value || *value < 0 || *value > std::numeric_limits<long long>::max() >> shift) return std::nullopt;
  return static_cast<size_t>(*value) << shift;
}

std::optional<std::chrono::milliseconds> parse_duration(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || !std::isfinite(value) || value < 0) return std::nullopt;
  const std::string_view unit(stop, end);
  double milliseconds = 0;
  if (unit == "ms") {
    milliseconds = value;
  } else if (unit == "s" || unit.empty()) {
    milliseconds = value * 1e3;
  } else if (unit == "m") {
    milliseconds = value * 60e3;
  } else if (unit == "h") {
    milliseconds = value * 3600e3;
  } else {
    return std::nullopt;
  }
  if (milliseconds > 1e15) return std::nullopt;
  return std::chrono::milliseconds(std::llround(milliseconds));
}

std::string format_duration(std::chrono::milliseconds duration) {
  const auto count = duration.count();
  if (count % 1000 != 0) return fmt::format("{}ms", count);
  if (count % 60000 != 0 || count == 0) return fmt::format("{}s", count / 1000);
  if (count % 3600000 != 0) return fmt::format("{}m", count / 60000);
  return fmt::format("{}h", count / 3600000);
}

std::string format_bytes(size_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return value == std::floor(value) || value >= 100 ? fmt::format("{:.0f} {}", value, kUnits[unit])
                                                    : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace muster::detail
