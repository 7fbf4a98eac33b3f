#include "bench/ps/driver.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace muster {
namespace {

constexpr int kSamples = 5;    // of a turn
constexpr int kFirstTurn = 3;  // say how many steps the others are to have

// A gradient is at most 2, and float32 has all whole numbers up to here.
constexpr double kLargestSum = (1 << 24) / 2;

}  // namespace

struct PsDriver::Entry {
  PsSubject subject;
  Contender& contender;
  std::vector<double> samples;
  double fastest_us = INFINITY;  // a slow one may have been disturbed
  bool verified = true;
};

PsDriver::PsDriver(PsOptions options, BenchObserver& observer)
    : options_(std::move(options)), observer_(observer), stage_(options_.stage, observer) {
  for (const auto& each : options_.cases)
    work_ += static_cast<double>(ps_subjects(options_.settings, each).size()) * (options_.rounds + 1);
}

bool PsDriver::run() {
  for (const auto& each : options_.cases) options_.on_point(measure(each));
  return stage_.all_well();
}

PsPoint PsDriver::measure(const PsCase& of) {
  std::vector<Entry> entries;
  for (auto& subject : ps_subjects(options_.settings, of)) {
    advance(of, "starting " + subject.command.of.subject);
    Contender& contender = stage_.add(subject.command, subject.workers + subject.servers);
    entries.push_back({.subject = std::move(subject), .contender = contender, .samples = {}});
  }
  for (auto& entry : entries) {
    take_turn(entry, kFirstTurn, 1);
    entry.samples.clear();
  }
  take_turns(options_.rounds, entries.size(), [&](size_t which) {
    advance(of, entries[which].subject.command.of.subject);
    take_turn(entries[which], kSamples, batch_of(entries[which]));
  });
  PsPoint point = {.of = of, .results = {}};
  for (const auto& entry : entries) {
    if (!entry.contender.running()) continue;
    point.results.push_back({.of = entry.contender.of(),
                             .median_us = percentile(entry.samples, 0.5),
                             .p10_us = percentile(entry.samples, 0.1),
                             .p90_us = percentile(entry.samples, 0.9),
                             .verified = entry.verified});
  }
  stage_.end_all();
  return point;
}

// As many steps again before the first sample: others have had the caches, and workers do not begin together.
void PsDriver::take_turn(Entry& entry, int samples, int batch) {
  const std::string command = fmt::format("run {} {} {}", batch, samples, batch);
  const auto lines = entry.contender.ask(command);
  if (!lines) return;
  const auto taken = parse_ps_samples(*lines, entry.subject.workers);
  if (!taken) {
    return entry.contender.fail(fmt::format("{}: no samples in the answers to '{}': {}",
                                            entry.contender.name(), command, fmt::join(*lines, "; ")));
  }
  for (const double sample : *taken) {
    entry.samples.push_back(sample);
    entry.fastest_us = std::min(entry.fastest_us, sample);
  }
  verify(entry);
}

void PsDriver::verify(Entry& entry) {
  const auto lines = entry.contender.ask("verify");
  if (!lines) return;
  const auto verdict = parse_ps_verdict(*lines, entry.subject.workers);
  if (!verdict) {
    return entry.contender.fail(fmt::format("{}: no verdict in the answers to 'verify': {}",
                                            entry.contender.name(), fmt::join(*lines, "; ")));
  }
  if (!*verdict && entry.verified) {
    entry.verified = false;
    stage_.problem(fmt::format("{}: wrong parameters", entry.contender.name()));
  }
}

// So many that a turn takes its time, and that the sum of all gradients is exact.
int PsDriver::batch_of(const Entry& entry) const {
  const double wanted = options_.seconds * 1e6 / (kSamples + 1) / std::max(entry.fastest_us, 0.01);
  const double exact =
      kLargestSum / entry.subject.workers / (static_cast<double>(options_.rounds + 1) * (kSamples + 1));
  return static_cast<int>(std::max(1.0, std::min(wanted, exact)));
}

void PsDriver::advance(const PsCase& of, const std::string& what) {
  observer_.on_progress(
      done_ / work_, fmt::format("{}, {} x {}  {}", describe(of), of.variables, format_size(of.bytes), what));
  done_ += 1;
}

}  // namespace muster
