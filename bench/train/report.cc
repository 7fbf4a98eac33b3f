#include "bench/train/report.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/collective/report.h"
#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster {
namespace {

// "nan" too, which streams do not read.
std::optional<double> parse_number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return end == text.c_str() || *end != '\0' ? std::nullopt : std::optional(value);
}

struct WorkerAnswer {
  double seconds = 0;
  double loss = 0;
  std::map<std::string, double> parts;
};

std::optional<WorkerAnswer> parse_answer(const std::string& line) {
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

std::optional<double> median_of(const std::vector<TrainSample>& samples,
                                std::optional<double> TrainSample::*part) {
  std::vector<double> values;
  for (const auto& sample : samples) {
    if (sample.*part) values.push_back(*(sample.*part));
  }
  return values.empty() ? std::nullopt : std::optional(percentile(values, 0.5));
}

nlohmann::json rounded(std::optional<double> value, int decimals) {
  if (!value || !std::isfinite(*value)) return nullptr;
  const double unit = std::pow(10, decimals);
  return std::round(*value * unit) / unit;
}

std::string cell(std::optional<double> value, int decimals) {
  return value ? fmt::format("{:.{}f}", *value, decimals) : "-";
}

}  // namespace

std::optional<TrainSample> parse_train_answers(const std::vector<std::string>& lines, int steps) {
  std::vector<WorkerAnswer> answers;
  TrainSample sample;
  for (const auto& line : lines) {
    const auto answer = parse_answer(line);
    if (!answer) return std::nullopt;
    answers.push_back(*answer);
    sample.seconds_a_step = std::max(sample.seconds_a_step, answer->seconds);
    sample.loss += answer->loss / static_cast<double>(lines.size());
  }
  // The mean, where some took more than others.
  const double each = steps > 0 ? steps : mean_part(answers, "steps").value_or(0);
  if (each <= 0) return std::nullopt;
  sample.seconds_a_step /= each;
  const auto milliseconds = [&](const char* name) {
    auto part = mean_part(answers, name);
    if (part) *part *= 1e3 / each;
    return part;
  };
  sample.compute_ms = milliseconds("compute");
  sample.wait_ms = milliseconds("wait");
  sample.update_ms = milliseconds("update");
  return sample;
}

std::optional<MemoryUse> parse_memory(std::string_view smaps_rollup) {
  std::map<std::string, double> fields;
  for (const auto& line : split(smaps_rollup, '\n')) {
    std::istringstream words(line);
    std::string name;
    double kibibytes = 0;
    if (words >> name >> kibibytes) fields[name] = kibibytes / 1024;
  }
  for (const char* name : {"Rss:", "Pss:", "Pss_Anon:", "Pss_Shmem:"}) {
    if (!fields.contains(name)) return std::nullopt;
  }
  return MemoryUse{
      .rss = fields["Rss:"], .pss = fields["Pss:"], .own = fields["Pss_Anon:"] + fields["Pss_Shmem:"]};
}

std::optional<MemoryUse> memory_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/smaps_rollup", pid));
  std::ostringstream text;
  text << file.rdbuf();
  return parse_memory(text.str());
}

TrainResult summarise(const TrainSubject& subject, int64_t batch, const std::vector<TrainSample>& samples) {
  MUSTER_CHECK(!samples.empty());
  std::vector<double> rates;
  for (const auto& sample : samples)
    rates.push_back(static_cast<double>(batch * subject.workers) / sample.seconds_a_step);
  return {.subject = subject.command.of.subject,
          .workers = subject.workers,
          .samples_per_s = percentile(rates, 0.5),
          .p10 = percentile(rates, 0.1),
          .p90 = percentile(rates, 0.9),
          .compute_ms = median_of(samples, &TrainSample::compute_ms),
          .wait_ms = median_of(samples, &TrainSample::wait_ms),
          .update_ms = median_of(samples, &TrainSample::update_ms),
          .loss = samples.back().loss,
          .memory = std::nullopt};
}

const TrainResult* TrainPoint::find(std::string_view subject, int workers) const {
  const auto found = std::find_if(results.begin(), results.end(), [&](const TrainResult& each) {
    return each.subject == subject && each.workers == workers;
  });
  return found != results.end() ? &*found : nullptr;
}

std::optional<double> TrainPoint::ratio(const TrainResult& result) const {
  const TrainResult* muster = find("muster", result.workers);
  if (muster == nullptr || result.subject == "muster") return std::nullopt;
  return muster->samples_per_s / result.samples_per_s;
}

std::optional<double> TrainPoint::scaling(const TrainResult& result) const {
  const TrainResult* one = find(result.subject == "alone" ? "loop" : result.subject, 1);
  if (one == nullptr || result.workers == 1) return std::nullopt;
  return result.samples_per_s / (result.workers * one->samples_per_s);
}

std::string to_json(const TrainPoint& point, const TrainResult& result) {
  const auto memory = [&](double MemoryUse::*what) {
    return rounded(result.memory ? std::optional((*result.memory).*what) : std::nullopt, 1);
  };
  return nlohmann::ordered_json{{"bench", "train"},
                                {"subject", result.subject},
                                {"model", point.model.name},
                                {"optimizer", point.optimizer},
                                {"workers", result.workers},
                                {"samples_per_s", rounded(result.samples_per_s, 1)},
                                {"p10", rounded(result.p10, 1)},
                                {"p90", rounded(result.p90, 1)},
                                {"compute_ms", rounded(result.compute_ms, 3)},
                                {"wait_ms", rounded(result.wait_ms, 3)},
                                {"update_ms", rounded(result.update_ms, 3)},
                                {"rss_mib", memory(&MemoryUse::rss)},
                                {"pss_mib", memory(&MemoryUse::pss)},
                                {"own_mib", memory(&MemoryUse::own)},
                                {"batch", point.model.batch},
                                {"loss", rounded(result.loss, 4)}}
      .dump();
}

std::string to_table(const TrainPoint& point) {
  std::string text = fmt::format("{}  {}, batch {} a worker, {}\n", point.model.name, point.model.title,
                                 point.model.batch, point.optimizer);
  text += fmt::format("{:>15} {:>7} {:>9} {:>9} {:>9} {:>7} {:>6} {:>10} {:>8} {:>9} {:>7} {:>5} {:>5}\n",
                      "subject", "workers", "samples/s", "p10", "p90", "scaling", "x", "compute ms",
                      "wait ms", "update ms", "RSS MiB", "PSS", "own");
  for (const auto& result : point.results) {
    const auto memory = [&](double MemoryUse::*what) {
      return cell(result.memory ? std::optional((*result.memory).*what) : std::nullopt, 0);
    };
    text += fmt::format(
        "{:>15} {:>7} {:>9.0f} {:>9.0f} {:>9.0f} {:>7} {:>6} {:>10} {:>8} {:>9} {:>7} {:>5} {:>5}\n",
        result.subject, result.workers, result.samples_per_s, result.p10, result.p90,
        cell(point.scaling(result), 3), cell(point.ratio(result), 2), cell(result.compute_ms, 2),
        cell(result.wait_ms, 2), cell(result.update_ms, 2), memory(&MemoryUse::rss), memory(&MemoryUse::pss),
        memory(&MemoryUse::own));
  }
  return text;
}

}  // namespace muster
