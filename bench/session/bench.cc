#include "bench/session/bench.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "bench/driver/numbers.h"
#include "bench/train/report.h"
#include "muster/base/cpu.h"
#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/base/tune.h"

namespace muster::detail::bench::session {
namespace {

constexpr int kSamples = 5;  // of a turn, where there is time for as many
constexpr int kWarmupSteps = 1;
constexpr int kLeastSteps = 2;
constexpr double kMostRuns = 1e6;
constexpr int64_t kMostNodes = 10'000'000;

void check_shape(const std::string& shape) {
  const auto numbers = split(shape, 'x');
  const auto is_good = [](const std::string& text) {
    const auto number = parse_integer(text);
    return number && *number > 0 && *number <= kMostNodes;
  };
  if (numbers.size() != 2 || !is_good(numbers[0]) || !is_good(numbers[1]) ||
      *parse_integer(numbers[0]) * *parse_integer(numbers[1]) > kMostNodes)
    raise<InvalidArgument>("--shapes: '{}' is not a width and a depth of at most {} nodes, such as 16x1024",
                           shape, kMostNodes);
}

}  // namespace

void Bench::add_flags(CLI::App& app) {
  add_list(app, "--cases", choice_.names, "which of the cases below");
  flags_.add_to(app, "what to compare with: loop,grpc,torch-rpc; those that can run if not given");
  add_list(app, "--shapes", choice_.shapes, "of executor: widths and depths of graphs");
  app.add_option("--sizes", sizes_, "of transfer: bytes of the tensor")->capture_default_str();
  add_list(app, "--nodes", choice_.nodes, "of graph: numbers of nodes; are rounded down to thousands")
      ->check(CLI::Range(int64_t{1000}, kMostNodes));
  app.add_option("--seconds", seconds_, "how long a turn is, about; it has at least one run")
      ->check(CLI::Range(0.0, kLongestTurn))
      ->capture_default_str();
  app.footer(
      "Cases:\n"
      "  operators  a compiled callable of 100 operators on four floats, in this process, beside the same\n"
      "             calls of ATen in a loop\n"
      "  cnn        a step of training a CNN on 64 digits, in this process, beside the same update in a "
      "loop\n"
      "  executor   nodes that do nothing, WIDTHxDEPTH, in this process: each comes after two nodes of the\n"
      "             level before (control) or takes the value of one (data). A group leaves nothing to run,\n"
      "             so they are operators that return at once\n"
      "  step       a step in which no task does anything, over --workers tasks, beside empty calls of gRPC\n"
      "             to as many\n"
      "  transfer   a tensor that is rewritten before each step, untimed, goes to another task, which adds\n"
      "             one, and comes back, where one element of each page is read\n"
      "  graph      all from an empty graph to the first result on two tasks: build, place, cut, register,\n"
      "             run; chains of 1000 operators, each on both tasks\n"
      "  pipeline   a step of a model of two equal stages on two tasks in 8 micro-batches, beside one task\n"
      "  replicas   model c of `muster bench train` with two workers and a parameter server, gradients\n"
      "             averaged, beside `muster run --strategy ps-sync`\n"
      "\nAll subjects of a case are measured in the same run, in turns, one thread a task; tasks are\n"
      "processes. Times are medians over all samples, in microseconds of a run or step. The column x is a\n"
      "subject's time divided by that of the first of its case: above 1, the first is faster.\n"
      "  loop       plain libtorch in C++; loop-kept likewise, with a heap that keeps what was freed\n"
      "  grpc       unary calls over Unix sockets, to all tasks at once\n"
      "  torch-rpc  PyTorch's RPC over TensorPipe, with tcmalloc where it is installed\n"
      "The exit code is 1 when a subject failed or gave a wrong result.\n\n"
      "  muster bench session --json session.json\n"
      "  muster bench session --cases step,transfer --workers 1,2 --peers grpc");
}

void Bench::check() {
  for (const auto& name : choice_.names) check_is_one_of("--cases", name, case_names());
  for (const auto& shape : choice_.shapes) check_shape(shape);
  flags_.check();
  choice_.tasks = flags_.workers;
  choice_.sizes = parse_sizes(sizes_);
}

std::vector<PeerState> Bench::peers(const Surroundings& surroundings) {
  settings_.python = find_torch_python(python_candidates(surroundings.search_path()));
  return session::peers(surroundings, settings_.python);
}

std::string Bench::title() const {
  return fmt::format("graphs and sessions, medians of {} of about {:g} s", flags_.turns(), seconds_);
}

std::vector<Group> Bench::groups(const Surroundings& surroundings, const std::vector<std::string>& peers) {
  settings_.peers = peers;
  settings_.programs = surroundings.programs;
  settings_.baseline = flags_.baseline;
  settings_.allocator = find_allocator();
  // One core for each task, whatever their number: so one task can be compared with two.
  for (const auto& [name, value] : tuning(CpuFeatures::detect(), 1, 1, surroundings.environment))
    settings_.tuning[name] = value;

  std::vector<Group> groups;
  for (const auto& each : cases(choice_)) {
    const Measurement measurement = {.label = Point{.of = each, .results = {}}.title(),
                                     .turn =
                                         [this, each](RunningSubject& subject, std::optional<double> us) {
                                           return each.is_training() ? take_training_turn(subject, us)
                                                                     : take_timed_turn(subject, us);
                                         },
                                     .report =
                                         [this, each](const std::vector<Series>& measured, Output& output) {
                                           Point point = {.of = each, .results = {}};
                                           for (const auto& series : measured)
                                             point.results.push_back(summarise(series));
                                           report(point, output);
                                         }};
    groups.push_back({.subjects = subjects(settings_, each), .measurements = {measurement}});
  }
  return groups;
}

// The first turn only says how many runs the others are to have. Before the first sample of a turn there are
// as many runs again, since others have had the caches; but for those that take so long that it is all one.
Turn Bench::take_timed_turn(RunningSubject& subject, std::optional<double> fastest_us) const {
  std::string command = "run 1 1 1";
  if (fastest_us) {
    const double runs = std::clamp(seconds_ * 1e6 / std::max(*fastest_us, 0.01), 1.0, kMostRuns);
    const int batch = static_cast<int>(runs / (kSamples + 1));
    command = batch > 0 ? fmt::format("run {} {} {}", batch, kSamples, batch)
                        : fmt::format("run 0 {} 1", static_cast<int>(runs));
  }
  const auto lines = subject.ask(command);
  const auto samples = parse_samples(lines, subject.command().workers);
  if (!samples) subject.reject(command, lines);
  const auto answers = subject.ask("verify");
  const auto verified = parse_verification(answers, subject.command().workers);
  if (!verified) subject.reject("verify", answers);
  Turn turn = {.samples = {}, .verified = *verified};
  for (const double us : *samples) turn.samples.push_back({.us = us});
  return turn;
}

Turn Bench::take_training_turn(RunningSubject& subject, std::optional<double> fastest_us) const {
  int steps = kLeastSteps;
  if (fastest_us)
    steps = std::max(kLeastSteps, static_cast<int>(std::min(seconds_ * 1e6 / *fastest_us, kMostRuns)));
  const std::string command = fmt::format("train {} {}", kWarmupSteps, steps);
  auto lines = subject.ask(command);
  lines.resize(static_cast<size_t>(subject.command().workers));  // others only serve
  const auto sample = train::parse_answers(lines, steps);
  if (!sample) subject.reject(command, lines);
  return {.samples = {{.us = sample->us}}, .verified = std::isfinite(sample->parts.at("loss"))};
}

void Bench::report(const Point& point, Output& output) {
  if (points_.empty()) output.print("\n" + table_head());
  output.print(table_rows(point));
  for (const auto& result : point.results) output.write_json(to_json(point, result));
  points_.push_back(point);
}

std::string Bench::closing() const {
  const auto text = bars(points_);
  return text.empty() ? "" : "\nbars\n" + text;
}

}  // namespace muster::detail::bench::session
