#include "muster/bench_driver.h"

#include <stdlib.h>

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

TemporaryFolder::TemporaryFolder(const Environment& environment) {
  std::string path = environment.get("TMPDIR").value_or("/tmp") + "/muster-bench.XXXXXX";
  if (mkdtemp(path.data()) == nullptr)
    raise<SystemError>("no temporary folder {}: {}", path, describe_errno(errno));
  path_ = path;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

struct BenchDriver::Contender {
  SubjectCommand command;
  std::filesystem::path folder;
  std::unique_ptr<RunningSubject> running;  // null when it has failed

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
      folder_(options_.environment) {
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
  return all_well_;
}

std::vector<int64_t> BenchDriver::sizes_for(int ranks) const {
  if (options_.settings.collective == "barrier") return {0};
  std::set<int64_t> sizes;
  for (const int64_t bytes : options_.sizes)
    sizes.insert(round_up(options_.settings.collective, bytes, ranks));
  return {sizes.begin(), sizes.end()};
}

void BenchDriver::run_ranks(int ranks) {
  std::vector<Contender> contenders;
  std::vector<BenchVariant> variants;
  for (auto& command : subject_commands(options_.settings, ranks, cores_)) {
    variants.push_back(command.of);
    const auto folder = folder_.path() / fmt::format("{}.{}", ranks, contenders.size());
    contenders.push_back({.command = std::move(command), .folder = folder});
  }
  // However this ends: all at once, since each takes a moment.
  const std::shared_ptr<void> ending(nullptr, [&](void*) {
    for (auto& contender : contenders) {
      if (contender.running) contender.running->tell_to_quit();
    }
  });
  observer_.on_variants(variants);
  for (auto& contender : contenders) start(contender, ranks);
  for (const int64_t bytes : sizes_for(ranks)) observer_.on_point(measure(contenders, ranks, bytes));
}

void BenchDriver::start(Contender& contender, int ranks) {
  const auto& of = contender.command.of;
  observer_.on_progress(done_ / work_,
                        fmt::format("{} ranks  starting {} ({})", ranks, of.subject, of.variant));
  try {
    contender.running = std::make_unique<RunningSubject>(
        contender.command,
        RunningSubject::Options{
            .ranks = ranks, .folder = contender.folder, .environment = options_.environment},
        warden_, signals_);
    contender.running->await_ready(Deadline::after(options_.timeout));
  } catch (const SubjectFailed& error) {
    problem(contender, error.what());
  } catch (const Error& error) {
    problem(contender, fmt::format("{} ({}): {}", of.subject, of.variant, error.what()));
  }
}

BenchPoint BenchDriver::measure(std::vector<Contender>& contenders, int ranks, int64_t bytes) {
  for (auto& contender : contenders) {
    advance(contender, ranks, bytes);
    begin_size(contender, bytes);
  }
  const size_t count = contenders.size();
  for (int round = 0; round < options_.rounds; ++round) {
    for (size_t i = 0; i < count; ++i) {
      Contender& contender = contenders[(i + static_cast<size_t>(round)) % count];
      advance(contender, ranks, bytes);
      take_samples(contender, fmt::format("run {} {} {} {} {}", options_.settings.collective, bytes,
                                          contender.batch(), options_.samples, contender.batch()));
    }
  }
  BenchPoint point = {.ranks = ranks, .bytes = bytes, .results = {}};
  for (auto& contender : contenders) {
    if (!contender.takes_part) continue;
    point.results.push_back({.of = contender.command.of,
                             .median_us = percentile(contender.samples, 0.5),
                             .p10_us = percentile(contender.samples, 0.1),
                             .p90_us = percentile(contender.samples, 0.9),
                             .verified = contender.verified});
  }
  return point;
}

// The first samples only say how often a sample is to repeat the collective.
void BenchDriver::begin_size(Contender& contender, int64_t bytes) {
  contender.takes_part = contender.running != nullptr;
  contender.verified = true;
  contender.fastest_us = INFINITY;
  take_samples(contender,
               fmt::format("run {} {} 1 {} 1", options_.settings.collective, bytes, kFirstSamples));
  contender.samples.clear();
}

void BenchDriver::take_samples(Contender& contender, const std::string& command) {
  if (!contender.takes_part) return;
  const auto& of = contender.command.of;
  try {
    const auto lines = contender.running->ask(command, Deadline::after(options_.timeout));
    if (lines.front().starts_with("skip ")) {
      contender.takes_part = false;
      const auto text =
          fmt::format("{} ({}) is left out: {}", of.subject, of.variant, lines.front().substr(5));
      if (said_.insert(text).second) observer_.on_notice(text);
      return;
    }
    const auto answer = parse_answers(lines);
    if (!answer) {
      return problem(contender,
                     fmt::format("{} ({}), {} ranks: no samples in the answers to '{}': {}", of.subject,
                                 of.variant, lines.size(), command, fmt::join(lines, "; ")));
    }
    for (const double sample : answer->samples) {
      contender.samples.push_back(sample);
      contender.fastest_us = std::min(contender.fastest_us, sample);
    }
    if (!answer->verified && contender.verified) {
      contender.verified = false;
      all_well_ = false;
      observer_.on_notice(fmt::format("{} ({}), {} ranks: a wrong result of '{}'", of.subject, of.variant,
                                      lines.size(), command));
    }
  } catch (const SubjectFailed& error) {
    problem(contender, error.what());
  }
}

void BenchDriver::problem(Contender& contender, const std::string& what) {
  all_well_ = false;
  contender.takes_part = false;
  observer_.on_notice(what);
  contender.running.reset();
}

void BenchDriver::advance(const Contender& contender, int ranks, int64_t bytes) {
  const auto& of = contender.command.of;
  if (contender.running) {
    observer_.on_progress(done_ / work_, fmt::format("{} ranks  {}  {} ({})", ranks, format_size(bytes),
                                                     of.subject, of.variant));
  }
  done_ += cost_of(bytes);
}

}  // namespace muster
