#include "bench/collective/bench.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "bench/collective/plot.h"
#include "bench/driver/numbers.h"
#include "muster/base/cpu.h"
#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail::bench::collective {
namespace {

// The collectives of a sample take about this long together: one alone may be disturbed by a neighbour.
constexpr double kSampleMicroseconds = 1000;
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

std::vector<Variant> variants_of(const std::vector<SubjectCommand>& subjects) {
  std::vector<Variant> variants;
  for (const auto& each : subjects) variants.push_back(each.of);
  return variants;
}

}  // namespace

void Bench::add_flags(CLI::App& app) {
  app.add_option("collective", settings_.collective, fmt::format("one of {}", fmt::join(collectives(), ", ")))
      ->capture_default_str();
  flags_.add_to(app, "what to compare with: gloo,openmpi,mpich; those that are built if not given");
  flags_.add_plot_to(app);
  app.add_option("--sizes", sizes_, "bytes: 8:256M doubles from the first to the last; or a list: 64K,1M,25M")
      ->capture_default_str();
  app.add_option("--transport", transport_, "shm (shared memory) or tcp (over the loopback interface)")
      ->capture_default_str();
  app.add_option("--samples", samples_, "samples of each turn")
      ->check(CLI::Range(1, kMostTurns))
      ->capture_default_str();
  app.add_option("--plot-value", plot_value_, "what the plot shows: time or bandwidth")
      ->capture_default_str();
  add_list(app, "--memory", settings_.memory, "Muster's buffers: arena, heap or both")->group("Muster");
  add_list(app, "--algorithm", settings_.algorithms,
           "Muster's algorithms, one after the other, instead of its own choice")
      ->group("Muster");
  app.add_flag("--explain", explains_, "say which algorithm Muster chooses, and measure nothing")
      ->group("Muster");
  app.add_option("flags", settings_.flags, "more flags for muster_bench_rank, after --")
      ->option_text("flags...");
  app.footer(
      "All subjects are measured in the same run, in turns, and verified on every rank. Before each\n"
      "collective every rank rewrites its buffer, as training does; only the collective is timed. Times\n"
      "are medians over all samples, in microseconds; a sample is that of the slowest rank. The line\n"
      "'repeated' has the time of collectives in a row on data that nobody has rewritten, where that\n"
      "differs by more than 10 %: each rank then finds its block in its own cache, which flatters.\n"
      "Bandwidths are those of nccl-tests. The column x is a subject's time divided by Muster's:\n"
      "above 1, Muster is faster. The floor is what the memory alone would allow. The exit code is 1\n"
      "when a subject failed or gave a wrong result.\n\n"
      "  muster bench allreduce --workers 2,4 --sizes 8:256M --peers gloo,openmpi,mpich --plot a.svg\n"
      "  muster bench alltoall --transport tcp --json alltoall.json");
}

void Bench::check() {
  check_is_one_of("muster bench", settings_.collective, collectives());
  check_is_one_of("--transport", transport_, {"shm", "tcp"});
  check_is_one_of("--plot-value", plot_value_, {"time", "bandwidth"});
  for (const auto& memory : settings_.memory) check_is_one_of("--memory", memory, {"arena", "heap"});
  if (!settings_.flags.empty() && !settings_.flags.front().starts_with("-"))
    raise<InvalidArgument>("'{}' was not expected; flags for muster_bench_rank come after --",
                           settings_.flags.front());
  if (settings_.collective == "barrier" && !flags_.files.plot.empty())
    raise<InvalidArgument>("--plot {}: a barrier has no sizes to draw over", flags_.files.plot);
  flags_.check();
  parse_sizes(sizes_);
  settings_.tcp = transport_ == "tcp";
}

std::vector<PeerState> Bench::peers(const Surroundings& surroundings) {
  return collective::peers(surroundings);
}

std::string Bench::title() const {
  return fmt::format("{}{} over {}, medians of {} samples", settings_.collective,
                     settings_.collective == "barrier" ? "" : " of float32",
                     settings_.tcp ? "TCP on the loopback interface" : "shared memory",
                     flags_.rounds * samples_);
}

std::vector<int64_t> Bench::sizes_for(int ranks) const {
  if (settings_.collective == "barrier") return {0};
  std::set<int64_t> sizes;
  for (const int64_t bytes : parse_sizes(sizes_)) sizes.insert(round_up(settings_.collective, bytes, ranks));
  return {sizes.begin(), sizes.end()};
}

std::vector<Group> Bench::groups(const Surroundings& surroundings, const std::vector<std::string>& peers) {
  settings_.programs = surroundings.programs;
  settings_.baseline = flags_.baseline;
  settings_.peers = peers;
  std::vector<Group> groups;
  for (const int ranks : flags_.workers) {
    const auto subjects = collective::subjects(settings_, ranks, available_cores());
    Group& group = groups.emplace_back(Group{.subjects = subjects, .measurements = {}});
    for (const int64_t bytes : sizes_for(ranks)) {
      check_memory(subjects.size(), ranks, bytes);
      group.measurements.push_back(
          {.label = settings_.collective == "barrier" ? "barrier" : format_size(bytes),
           .cost = cost_of(bytes),
           .turn = [this, bytes](RunningSubject& subject,
                                 std::optional<double> us) { return take_turn(subject, bytes, us); },
           .report =
               [this, ranks, bytes, subjects](const std::vector<Series>& measured, Output& output) {
                 Point point = {.ranks = ranks, .bytes = bytes, .results = {}};
                 for (const auto& series : measured) point.results.push_back(summarise(series));
                 report(point, subjects, output);
               }});
    }
  }
  return groups;
}

void Bench::check_memory(size_t variants, int ranks, int64_t bytes) const {
  const size_t buffers = is_in_place(settings_.collective) ? 1 : 2;
  const size_t needed = variants * static_cast<size_t>(ranks) * static_cast<size_t>(bytes) * buffers;
  const size_t memory = available_memory();
  if (needed <= memory) return;
  raise<InvalidArgument>(
      "{} variants with {} ranks need {} for buffers of {}, and {} are available: use smaller --sizes, "
      "fewer --peers or fewer --workers",
      variants, ranks, format_bytes(needed), format_size(bytes), format_bytes(memory));
}

// The first turn only says how many collectives a sample is to have.
Turn Bench::take_turn(RunningSubject& subject, int64_t bytes, std::optional<double> fastest_us) const {
  Turn turn = ask(subject, "run", bytes, fastest_us);
  if (!fastest_us || settings_.collective == "barrier") return turn;
  const Turn repeated = ask(subject, "repeat", bytes, fastest_us);
  turn.verified &= repeated.verified;
  for (size_t i = 0; i < std::min(turn.samples.size(), repeated.samples.size()); ++i)
    turn.samples[i].parts["repeated"] = repeated.samples[i].us;
  return turn;
}

Turn Bench::ask(RunningSubject& subject, const char* verb, int64_t bytes,
                std::optional<double> fastest_us) const {
  const double wanted = fastest_us ? kSampleMicroseconds / std::max(*fastest_us, 0.01) : 1;
  const int batch = static_cast<int>(std::clamp(wanted, 1.0, kLargestBatch));
  const std::string command = fmt::format("{} {} {} {} {} {}", verb, settings_.collective, bytes, batch,
                                          fastest_us ? samples_ : kFirstSamples, batch);
  const auto lines = subject.ask(command);
  if (lines.front().starts_with("skip ")) throw NotOffered(lines.front().substr(5));
  const auto turn = parse_answers(lines);
  if (!turn) subject.reject(command, lines);
  return *turn;
}

void Bench::report(const Point& point, const std::vector<SubjectCommand>& subjects, Output& output) {
  const Table table(settings_.collective, variants_of(subjects));
  if (table.head() != head_) output.print("\n" + table.head());
  head_ = table.head();
  output.print(table.row(point));
  for (const auto& result : point.results) output.write_json(to_json(settings_.collective, point, result));
  points_.push_back(point);
}

std::string Bench::plot() const {
  const auto value = plot_value_ == "time" ? PlotValue::kTime : PlotValue::kBusBandwidth;
  return plot_svg(settings_.collective, value, points_);
}

}  // namespace muster::detail::bench::collective
