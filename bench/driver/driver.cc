#include "bench/driver/driver.h"

#include <stdlib.h>

#include <algorithm>

#include <fmt/format.h>

namespace muster::detail::bench {

int run(Kind& kind) {
  kind.check();
  const Flags& flags = kind.flags();
  const auto surroundings = Surroundings::of_process();
  for (const auto& folder : {surroundings.programs, std::filesystem::path(flags.baseline)}) {
    if (folder.empty()) continue;
    check_is_built(folder, "muster");
    check_is_built(folder, kind.program());
  }
  const auto peers = kind.peers(surroundings);
  const auto chosen = choose_from(peers, flags.peers);
  const auto groups = kind.groups(surroundings, chosen);

  Output output(flags.config.progress, flags.files);
  for (const auto& peer : peers) {
    if (flags.peers.empty() && !peer.missing.empty())
      output.notice(fmt::format("{} is left out: it {}", peer.name, peer.missing));
  }
  return output.finish(
      [&] {
        Driver driver({.rounds = flags.rounds,
                       .environment = surroundings.environment,
                       .timeout = flags.answer_timeout()},
                      output);
        output.print(kind.title() + "\n");
        const bool all_well = driver.run(groups);
        output.print(kind.closing());
        return all_well;
      },
      [&] { return kind.plot(); });
}

std::vector<size_t> order_of_turns(size_t round, size_t count) {
  std::vector<size_t> order;
  // Shifted by the round: 0, 1, count - 1, 2, count - 2, ..., which has each difference modulo count once.
  for (size_t i = 0; i < count; ++i) {
    const size_t first = i % 2 == 0 ? (count - i / 2) % count : i / 2 + 1;
    order.push_back((first + round) % count);
  }
  if (count % 2 == 1 && round / count % 2 == 1) std::ranges::reverse(order);
  return order;
}

void take_turns(int rounds, size_t count, const std::function<void(size_t which)>& turn) {
  for (int round = 0; round < rounds; ++round) {
    for (const size_t which : order_of_turns(static_cast<size_t>(round), count)) turn(which);
  }
}

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

/// A subject of the group that is being measured.
struct Driver::Entry {
  SubjectCommand command;
  std::unique_ptr<RunningSubject> subject;  // null after it has failed

  // In one measurement.
  bool takes_part = true;
  std::optional<double> fastest_us = std::nullopt;  // a slow one may have been disturbed
  Series series = {};
};

Driver::Driver(Options options, Output& output)
    : options_(std::move(options)), output_(output), folder_(options_.environment) {}

bool Driver::run(const std::vector<Group>& groups) {
  for (const auto& group : groups) {
    for (const auto& measurement : group.measurements)
      work_ += measurement.cost * static_cast<double>(group.subjects.size()) * (options_.rounds + 1);
  }
  for (const auto& group : groups) run(group);
  return all_well_;
}

void Driver::run(const Group& group) {
  std::vector<Entry> entries;
  for (const auto& command : group.subjects) entries.push_back({command, start(command)});
  for (const auto& measurement : group.measurements) measure(measurement, entries);
  for (const auto& entry : entries) {  // all at once, since each takes a moment to end
    if (entry.subject) entry.subject->tell_to_quit();
  }
}

std::unique_ptr<RunningSubject> Driver::start(const SubjectCommand& command) {
  output_.progress(done_ / work_, "starting " + command.name());
  try {
    auto subject = std::make_unique<RunningSubject>(
        command,
        RunningSubject::Options{.folder = folder_.path() / std::to_string(started_++),
                                .environment = options_.environment,
                                .timeout = options_.timeout},
        reaper_, signals_);
    subject->await_ready();
    return subject;
  } catch (const SubjectFailed& error) {
    problem(error.what());
  } catch (const Error& error) {
    problem(fmt::format("{}: {}", command.name(), error.what()));
  }
  return nullptr;
}

void Driver::measure(const Measurement& measurement, std::vector<Entry>& entries) {
  for (auto& entry : entries) {
    entry.takes_part = entry.subject != nullptr;
    entry.fastest_us.reset();
    entry.series = {.of = entry.command.of, .workers = entry.command.workers, .samples = {}};
    take_turn(measurement, entry);
    entry.series.samples.clear();
  }
  take_turns(options_.rounds, entries.size(), [&](size_t which) { take_turn(measurement, entries[which]); });

  std::vector<Series> measured;
  for (auto& entry : entries) {
    if (entry.takes_part) measured.push_back(std::move(entry.series));
  }
  measurement.report(measured, output_);
}

void Driver::take_turn(const Measurement& measurement, Entry& entry) {
  const std::string name = entry.command.name();
  done_ += measurement.cost;
  if (!entry.takes_part) return;
  output_.progress((done_ - measurement.cost) / work_, fmt::format("{}  {}", measurement.label, name));
  try {
    const Turn turn = measurement.turn(*entry.subject, entry.fastest_us);
    for (const auto& sample : turn.samples) {
      entry.series.samples.push_back(sample);
      entry.fastest_us = std::min(entry.fastest_us.value_or(sample.us), sample.us);
    }
    if (!turn.verified && std::exchange(entry.series.verified, false))
      problem(fmt::format("{}: a wrong result ({})", name, measurement.label));
  } catch (const NotOffered& reason) {
    entry.takes_part = false;
    const auto& of = entry.command.of;
    const auto text = fmt::format("{} ({}) is left out: {}", of.subject, of.variant, reason.what());
    if (said_.insert(text).second) output_.notice(text);
  } catch (const SubjectFailed& error) {
    entry.takes_part = false;
    problem(error.what());
    entry.subject.reset();
  }
}

void Driver::problem(const std::string& what) {
  all_well_ = false;
  output_.notice(what);
}

}  // namespace muster::detail::bench
