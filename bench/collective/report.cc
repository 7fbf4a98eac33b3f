#include "bench/collective/report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/collective/subjects.h"
#include "bench/driver/numbers.h"

namespace muster::detail::bench::collective {
namespace {

// How much a time may differ from that of collectives in a row before both are shown.
constexpr double kWorthALine = 0.1;

// The columns after a time.
constexpr size_t kBandwidthsWidth = 20;
constexpr size_t kRatioWidth = 7;

std::string format_bandwidth(double bytes, double microseconds) {
  return fmt::format("{:.2f}", bytes / microseconds / 1e3);
}

}  // namespace

std::optional<Turn> parse_answers(const std::vector<std::string>& lines) {
  Turn turn;
  for (const auto& line : lines) {
    const auto numbers = parse_answer(line);
    if (!numbers || numbers->size() < 2) return std::nullopt;
    turn.verified &= numbers->front() == 1;
    turn.samples.resize(std::max(turn.samples.size(), numbers->size() - 1));
    for (size_t i = 1; i < numbers->size(); ++i)
      turn.samples[i - 1].us = std::max(turn.samples[i - 1].us, (*numbers)[i]);
  }
  return turn;
}

double bus_factor(std::string_view collective, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (collective == "allreduce") return 2 * others;
  if (!is_in_place(collective)) return others;
  return collective == "barrier" ? 0 : 1;
}

const Result* best_of(const Point& point, std::string_view subject) {
  const Result* best = nullptr;
  for (const auto& result : point.results) {
    if (result.of.subject != subject || !result.verified) continue;
    if (best == nullptr || result.median_us < best->median_us) best = &result;
  }
  return best;
}

std::string to_json(const std::string& collective, const Point& point, const Result& result) {
  nlohmann::ordered_json json = {{"bench", collective},
                                 {"subject", result.of.subject},
                                 {"variant", result.of.variant},
                                 {"ranks", point.ranks},
                                 {"bytes", point.bytes},
                                 {"median_us", rounded(result.median_us)},
                                 {"p10_us", rounded(result.p10_us)},
                                 {"p90_us", rounded(result.p90_us)},
                                 {"verified", result.verified}};
  if (result.repeated_us) json["repeated_us"] = rounded(*result.repeated_us);
  return json.dump();
}

Table::Table(std::string collective, const std::vector<Variant>& variants)
    : collective_(std::move(collective)) {
  for (const auto& each : variants) {
    if (subjects_.empty() || subjects_.back().name != each.subject)
      subjects_.push_back({.name = each.subject, .variants = {}});
    subjects_.back().variants.push_back(each.variant);
  }
}

std::string Table::head() const {
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

std::string Table::row(const Point& point) const {
  const Result* first = subjects_.empty() ? nullptr : best_of(point, subjects_.front().name);
  std::string text =
      fmt::format("{:>5} {:>8}", point.ranks, collective_ == "barrier" ? "-" : format_size(point.bytes));
  for (const auto& subject : subjects_) {
    const Result* best = best_of(point, subject.name);
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
  return text + '\n' + repeated(point);
}

// Under each best variant, so without its letter.
std::string Table::repeated(const Point& point) const {
  std::string text = fmt::format("{:>14}", "repeated");
  bool any = false;
  for (const auto& subject : subjects_) {
    const Result* best = best_of(point, subject.name);
    std::string time;
    if (best != nullptr && best->repeated_us &&
        std::abs(*best->repeated_us - best->median_us) > kWorthALine * best->median_us) {
      time = format_microseconds(*best->repeated_us) + (subject.variants.size() > 1 ? "  " : "");
      any = true;
    }
    text += fmt::format("  {:>12}", time);
    text += std::string(&subject == &subjects_.front() ? kBandwidthsWidth : kRatioWidth, ' ');
  }
  if (!any) return "";
  return text.substr(0, text.find_last_not_of(' ') + 1) + '\n';
}

// The letter stands after the digits, so that the numbers of a column stay in line.
std::string Table::cell(const Subject& subject, const Point& point) const {
  const Result* best = best_of(point, subject.name);
  const bool several = subject.variants.size() > 1;
  if (best == nullptr) {
    const bool wrong = std::any_of(point.results.begin(), point.results.end(),
                                   [&](const Result& each) { return each.of.subject == subject.name; });
    return std::string(wrong ? "wrong" : "-") + (several ? "  " : "");
  }
  std::string time = format_microseconds(best->median_us);
  if (!several) return time;
  const auto found = std::find(subject.variants.begin(), subject.variants.end(), best->of.variant);
  return fmt::format("{} {}", time, static_cast<char>('a' + (found - subject.variants.begin())));
}

}  // namespace muster::detail::bench::collective
