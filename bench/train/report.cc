#include "bench/train/report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/driver/numbers.h"
#include "muster/base/text.h"

namespace muster::detail::bench::train {
namespace {

struct WorkerAnswer {
  double seconds = 0;
  double loss = 0;
  std::map<std::string, double> parts;
};

std::optional<WorkerAnswer> parse_worker(const std::string& line) {
  const auto words = split(line, ' ');
  if (words.size() < 3 || words.size() % 2 == 0 || words[0] != "ok") return std::nullopt;
  const auto seconds = parse_number(words[1]);
  const auto loss = parse_number(words[2]);
  if (!seconds || !loss || !(*seconds > 0)) return std::nullopt;
  WorkerAnswer answer = {.seconds = *seconds, .loss = *loss};
  for (size_t i = 3; i < words.size(); i += 2) {
    const auto value = parse_number(words[i + 1]);
    if (!value) return std::nullopt;
    answer.parts[words[i]] = *value;
  }
  return answer;
}

std::optional<double> mean_part(const std::vector<WorkerAnswer>& answers, const std::string& name) {
  double sum = 0;
  for (const auto& answer : answers) {
    const auto found = answer.parts.find(name);
    if (found == answer.parts.end()) return std::nullopt;
    sum += found->second;
  }
  return sum / static_cast<double>(answers.size());
}

nlohmann::json json_of(std::optional<double> value, int decimals) {
  if (!value || !std::isfinite(*value)) return nullptr;
  return rounded(*value, decimals);
}

}  // namespace

std::optional<Sample> parse_answers(const std::vector<std::string>& lines, int steps) {
  std::vector<WorkerAnswer> answers;
  double slowest = 0;
  double loss = 0;
  for (const auto& line : lines) {
    const auto answer = parse_worker(line);
    if (!answer) return std::nullopt;
    answers.push_back(*answer);
    slowest = std::max(slowest, answer->seconds);
    loss += answer->loss / static_cast<double>(lines.size());
  }
  // The mean, where some took more than others.
  const double each = steps > 0 ? steps : mean_part(answers, "steps").value_or(0);
  if (each <= 0) return std::nullopt;
  Sample sample = {.us = slowest * 1e6 / each, .parts = {{"loss", loss}}};
  for (const std::string name : {"compute", "wait", "update"}) {
    if (const auto part = mean_part(answers, name)) sample.parts[name + "_ms"] = *part * 1e3 / each;
  }
  return sample;
}

Result summarise(const Series& series, int64_t batch) {
  const auto& last = series.samples.back().parts;
  std::optional<MemoryUse> memory;
  if (last.contains("rss"))
    memory = MemoryUse{.rss = last.at("rss"), .pss = last.at("pss"), .own = last.at("own")};
  std::vector<double> rates;
  for (const auto& sample : series.samples)
    rates.push_back(static_cast<double>(batch * series.workers) * 1e6 / sample.us);
  return {.subject = series.of.subject,
          .workers = series.workers,
          .samples_per_s = percentile(rates, 0.5),
          .p10 = percentile(rates, 0.1),
          .p90 = percentile(rates, 0.9),
          .compute_ms = series.median_of("compute_ms"),
          .wait_ms = series.median_of("wait_ms"),
          .update_ms = series.median_of("update_ms"),
          .loss = last.at("loss"),
          .memory = memory};
}

const Result* Point::find(std::string_view subject, int workers) const {
  const auto found = std::find_if(results.begin(), results.end(), [&](const Result& each) {
    return each.subject == subject && each.workers == workers;
  });
  return found != results.end() ? &*found : nullptr;
}

std::optional<double> Point::ratio(const Result& result) const {
  const Result* muster = find("muster", result.workers);
  if (muster == nullptr || result.subject == "muster") return std::nullopt;
  return muster->samples_per_s / result.samples_per_s;
}

std::optional<double> Point::scaling(const Result& result) const {
  const Result* one = find(result.subject == "alone" ? "loop" : result.subject, 1);
  if (one == nullptr || result.workers == 1) return std::nullopt;
  return result.samples_per_s / (result.workers * one->samples_per_s);
}

std::string to_json(const Point& point, const Result& result) {
  const auto memory = [&](double MemoryUse::*what) {
    return json_of(result.memory ? std::optional((*result.memory).*what) : std::nullopt, 1);
  };
  return nlohmann::ordered_json{{"bench", "train"},
                                {"subject", result.subject},
                                {"model", point.model.name},
                                {"optimizer", point.optimizer},
                                {"workers", result.workers},
                                {"samples_per_s", json_of(result.samples_per_s, 1)},
                                {"p10", json_of(result.p10, 1)},
                                {"p90", json_of(result.p90, 1)},
                                {"compute_ms", json_of(result.compute_ms, 3)},
                                {"wait_ms", json_of(result.wait_ms, 3)},
                                {"update_ms", json_of(result.update_ms, 3)},
                                {"rss_mib", memory(&MemoryUse::rss)},
                                {"pss_mib", memory(&MemoryUse::pss)},
                                {"own_mib", memory(&MemoryUse::own)},
                                {"batch", point.model.batch},
                                {"loss", json_of(result.loss, 4)}}
      .dump();
}

std::string to_table(const Point& point) {
  std::string text = fmt::format("{}  {}, batch {} a worker, {}\n", point.model.name, point.model.title,
                                 point.model.batch, point.optimizer);
  text += fmt::format("{:>15} {:>7} {:>9} {:>9} {:>9} {:>7} {:>6} {:>10} {:>8} {:>9} {:>7} {:>5} {:>5}\n",
                      "subject", "workers", "samples/s", "p10", "p90", "scaling", "x", "compute ms",
                      "wait ms", "update ms", "RSS MiB", "PSS", "own");
  for (const auto& result : point.results) {
    const auto memory = [&](double MemoryUse::*what) {
      return format_cell(result.memory ? std::optional((*result.memory).*what) : std::nullopt, 0);
    };
    text += fmt::format(
        "{:>15} {:>7} {:>9.0f} {:>9.0f} {:>9.0f} {:>7} {:>6} {:>10} {:>8} {:>9} {:>7} {:>5} {:>5}\n",
        result.subject, result.workers, result.samples_per_s, result.p10, result.p90,
        format_cell(point.scaling(result), 3), format_cell(point.ratio(result), 2),
        format_cell(result.compute_ms, 2), format_cell(result.wait_ms, 2), format_cell(result.update_ms, 2),
        memory(&MemoryUse::rss), memory(&MemoryUse::pss), memory(&MemoryUse::own));
  }
  return text;
}

}  // namespace muster::detail::bench::train
