#include "bench/collective/driver.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "muster/base/cpu.h"
#include "muster/base/text.h"

namespace muster {
namespace {

// A sample takes about this long, by repetition of what is shorter: the clock and the barrier before it then
// do not count.
constexpr double kSampleMicroseconds = 2000;
constexpr double kLargestBatch = 500;
constexpr int kFirstSamples = 3;

// How long a size takes, for the progress line: as much again for each 4 MiB.
double cost_of(int64_t bytes) {
  return 1 + static_cast<double>(bytes) / (4 << 20);
}

size_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  size_t kibibytes = 0;
  for (std::string line; std::getline(file, line);) {
    if (std::istringstream(line) >> name >> kibibytes && name == "MemAvailable:") return kibibytes << 10;
  }
  return SIZE_MAX;
}

/// What the ranks answered: the slowest rank of each sample, and whether all were right.
struct Answer {
  bool verified = true;
  std::vector<double> samples;
};

/// Nothing when a line is not of that form.
std::optional<Answer> parse_answers(const std::vector<std::string>& lines) {
  Answer answer;
  for (const auto& line : lines) {
    std::istringstream words(line);
    std::string ok;
    bool verified = false;
    words >> ok >> verified;
    answer.verified &= verified;
    size_t index = 0;
    for (double value = 0; words >> value; ++index) {
      if (index == answer.samples.size()) answer.samples.push_back(0);
      answer.samples[index] = std::max(answer.samples[index], value);
    }
    if (ok != "ok" || index == 0) return std::nullopt;
  }
  return answer;
}

}  // namespace

struct BenchDriver::Entry {
  Contender& contender;

  // Of the size that is being measured.
  bool takes_part = false;
  bool verified = true;
  std::vector<double> samples;
  double fastest_us = INFINITY;

  // By the fastest sample so far: a slow one may have been disturbed.
  int batch() const {
    return static_cast<int>(std::clamp(kSampleMicroseconds / std::max(fastest_us, 0.01), 1.0, kLargestBatch));
  }
};

BenchDriver::BenchDriver(BenchOptions options, BenchObserver& observer)
    : options_(std::move(options)),
      observer_(observer),
      cores_(available_cores()),
      stage_(options_.stage, observer) {
  const size_t buffers = is_in_place(options_.settings.collective) ? 1 : 2;
  const size_t memory = available_memory();
  for (const int ranks : options_.workers) {
    const auto variants = subject_commands(options_.settings, ranks, cores_).size();
    for (const int64_t bytes : sizes_for(ranks)) {
      work_ += static_cast<double>(variants) * (options_.rounds + 1) * cost_of(bytes);
      const size_t needed = variants * static_cast<size_t>(ranks) * static_cast<size_t>(bytes) * buffers;
      if (needed <= memory) continue;
      raise<InvalidArgument>(
          "{} variants with {} ranks need {} for buffers of {}, and {} are available: use smaller --sizes, "
          "fewer --peers or fewer --workers",
          variants, ranks, format_bytes(needed), format_size(bytes), format_bytes(memory));
    }
  }
}

bool BenchDriver::run() {
  for (const int ranks : options_.workers) run_ranks(ranks);
  return stage_.all_well();
}

std::vector<int64_t> BenchDriver::sizes_for(int ranks) const {
  if (options_.settings.collective == "barrier") return {0};
  std::set<int64_t> sizes;
  for (const int64_t bytes : options_.sizes)
    sizes.insert(round_up(options_.settings.collective, bytes, ranks));
  return {sizes.begin(), sizes.end()};
}

void BenchDriver::run_ranks(int ranks) {
  auto commands = subject_commands(options_.settings, ranks, cores_);
  std::vector<BenchVariant> variants;
  for (const auto& command : commands) variants.push_back(command.of);
  options_.on_variants(variants);
  std::vector<Entry> entries;
  for (auto& command : commands) {
    observer_.on_progress(done_ / work_, fmt::format("{} ranks  starting {} ({})", ranks, command.of.subject,
                                                     command.of.variant));
    entries.push_back({.contender = stage_.add(std::move(command), ranks)});
  }
  for (const int64_t bytes : sizes_for(ranks)) options_.on_point(measure(entries, ranks, bytes));
  stage_.end_all();
}

BenchPoint BenchDriver::measure(std::vector<Entry>& entries, int ranks, int64_t bytes) {
  for (auto& entry : entries) {
    advance(entry.contender, bytes);
    begin_size(entry, bytes);
  }
  take_turns(options_.rounds, entries.size(), [&](size_t which) {
    Entry& entry = entries[which];
    advance(entry.contender, bytes);
    take_samples(entry, fmt::format("run {} {} {} {} {}", options_.settings.collective, bytes, entry.batch(),
                                    options_.samples, entry.batch()));
  });
  BenchPoint point = {.ranks = ranks, .bytes = bytes, .results = {}};
  for (auto& entry : entries) {
    if (!entry.takes_part) continue;
    point.results.push_back({.of = entry.contender.of(),
                             .median_us = percentile(entry.samples, 0.5),
                             .p10_us = percentile(entry.samples, 0.1),
                             .p90_us = percentile(entry.samples, 0.9),
                             .verified = entry.verified});
  }
  return point;
}

// The first samples only say how often a sample is to repeat the collective.
void BenchDriver::begin_size(Entry& entry, int64_t bytes) {
  entry.takes_part = entry.contender.running();
  entry.verified = true;
  entry.fastest_us = INFINITY;
  take_samples(entry, fmt::format("run {} {} 1 {} 1", options_.settings.collective, bytes, kFirstSamples));
  entry.samples.clear();
}

void BenchDriver::take_samples(Entry& entry, const std::string& command) {
  if (!entry.takes_part) return;
  const auto lines = entry.contender.ask(command);
  if (lines && lines->front().starts_with("skip ")) {
    entry.takes_part = false;
    const auto& of = entry.contender.of();
    const auto text =
        fmt::format("{} ({}) is left out: {}", of.subject, of.variant, lines->front().substr(5));
    if (said_.insert(text).second) observer_.on_notice(text);
    return;
  }
  const auto answer = lines ? parse_answers(*lines) : std::nullopt;
  if (!answer) {
    entry.takes_part = false;
    if (lines)
      entry.contender.fail(fmt::format("{}: no samples in the answers to '{}': {}", entry.contender.name(),
                                       command, fmt::join(*lines, "; ")));
    return;
  }
  for (const double sample : answer->samples) {
    entry.samples.push_back(sample);
    entry.fastest_us = std::min(entry.fastest_us, sample);
  }
  if (!answer->verified && entry.verified) {
    entry.verified = false;
    stage_.problem(fmt::format("{}: a wrong result of '{}'", entry.contender.name(), command));
  }
}

void BenchDriver::advance(const Contender& contender, int64_t bytes) {
  const auto& of = contender.of();
  if (contender.running()) {
    observer_.on_progress(done_ / work_, fmt::format("{} ranks  {}  {} ({})", contender.ranks(),
                                                     format_size(bytes), of.subject, of.variant));
  }
  done_ += cost_of(bytes);
}

}  // namespace muster
