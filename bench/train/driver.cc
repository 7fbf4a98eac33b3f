#include "bench/train/driver.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace muster {
namespace {

constexpr int kFirstWarmup = 3;
constexpr int kWarmup = 1;  // of each turn: others have had the caches, and the workers begin together
constexpr int kLeastSteps = 3;
constexpr double kMostSteps = 1e6;

std::optional<MemoryUse> mean_memory(const std::vector<pid_t>& pids) {
  MemoryUse sum;
  for (const pid_t pid : pids) {
    const auto use = memory_of(pid);
    if (!use) return std::nullopt;
    sum.rss += use->rss;
    sum.pss += use->pss;
    sum.own += use->own;
  }
  const auto count = static_cast<double>(pids.size());
  return MemoryUse{.rss = sum.rss / count, .pss = sum.pss / count, .own = sum.own / count};
}

}  // namespace

struct TrainDriver::Entry {
  TrainSubject subject;
  Contender& contender;
  std::vector<TrainSample> samples;
  double fastest_step = INFINITY;  // seconds; a slow one may have been disturbed
};

TrainDriver::TrainDriver(TrainOptions options, BenchObserver& observer)
    : options_(std::move(options)), observer_(observer), stage_(options_.stage, observer) {
  for (const auto& model : options_.models) {
    for (const auto& optimizer : options_.optimizers) {
      const auto subjects = train_subjects(options_.settings, model, optimizer, options_.workers).size();
      work_ += static_cast<double>(subjects) * (options_.rounds + 1);
    }
  }
}

bool TrainDriver::run() {
  for (const auto& model : options_.models) {
    for (const auto& optimizer : options_.optimizers) options_.on_point(measure(model, optimizer));
  }
  return stage_.all_well();
}

TrainPoint TrainDriver::measure(const TrainModelInfo& model, const std::string& optimizer) {
  std::vector<Entry> entries;
  for (auto& subject : train_subjects(options_.settings, model, optimizer, options_.workers)) {
    observer_.on_progress(
        done_ / work_, fmt::format("{}, {}  starting {}", model.name, optimizer, subject.command.of.subject));
    Contender& contender = stage_.add(subject.command, subject.workers);
    entries.push_back({.subject = std::move(subject), .contender = contender, .samples = {}});
  }
  // The first turn only says how many steps the others are to have.
  for (auto& entry : entries) {
    advance("warming up", entry.contender);
    take_turn(entry, kFirstWarmup, kLeastSteps);
    entry.samples.clear();
  }
  take_turns(options_.rounds, entries.size(), [&](size_t which) {
    advance("measuring", entries[which].contender);
    if (options_.settings.strategies.empty()) {
      take_turn(entries[which], kWarmup, steps_of_turn(entries[which]));
    } else {
      take_turn(entries[which], fmt::format("train-for {}", options_.seconds), 0);
    }
  });
  TrainPoint point = {.model = model, .optimizer = optimizer, .results = {}};
  for (const auto& entry : entries) {
    if (!entry.contender.running()) continue;
    point.results.push_back(summarise(entry.subject, model.batch, entry.samples));
    point.results.back().memory = mean_memory(entry.contender.pids());
  }
  stage_.end_all();
  return point;
}

void TrainDriver::take_turn(Entry& entry, int warmup, int steps) {
  take_turn(entry, fmt::format("train {} {}", warmup, steps), steps);
}

void TrainDriver::take_turn(Entry& entry, const std::string& command, int steps) {
  const auto lines = entry.contender.ask(command);
  if (!lines) return;
  const auto sample = parse_train_answers(*lines, steps);
  if (!sample) {
    return entry.contender.fail(fmt::format("{}: no sample in the answers to '{}': {}",
                                            entry.contender.name(), command, fmt::join(*lines, "; ")));
  }
  if (!std::isfinite(sample->loss)) {
    return entry.contender.fail(fmt::format("{}: the loss is {} after '{}', and should be finite",
                                            entry.contender.name(), sample->loss, command));
  }
  entry.samples.push_back(*sample);
  entry.fastest_step = std::min(entry.fastest_step, sample->seconds_a_step);
}

int TrainDriver::steps_of_turn(const Entry& entry) const {
  return std::max(kLeastSteps, static_cast<int>(std::min(options_.seconds / entry.fastest_step, kMostSteps)));
}

void TrainDriver::advance(const std::string& what, const Contender& contender) {
  if (contender.running()) observer_.on_progress(done_ / work_, fmt::format("{} {}", what, contender.name()));
  done_ += 1;
}

}  // namespace muster
