#include "bench/ps/bench.h"

#include <algorithm>

#include <fmt/format.h>

#include "bench/driver/numbers.h"

namespace muster::detail::bench::ps {
namespace {

constexpr int kMostServers = 128;
constexpr int kMostVariables = 100000;
constexpr int kSamples = 5;       // of a turn
constexpr int kFirstSamples = 3;  // say how many steps the others are to have

// A gradient is at most 2, and float32 has all whole numbers up to here.
constexpr double kLargestSum = (1 << 24) / 2.0;

}  // namespace

void Bench::add_flags(CLI::App& app) {
  flags_.add_to(app,
                "what to compare with: grpc-unary,grpc-stream,torch-rpc; those that can run if not given");
  add_list(app, "--servers", choice_.servers, "numbers of parameter servers, each in turn: 1,2")
      ->check(CLI::Range(1, kMostServers));
  app.add_option("--sizes", sizes_,
                 "bytes of a variable: 4K,1M; or 4K:64M doubles from the first to the last")
      ->capture_default_str();
  add_list(app, "--variables", choice_.variables, "numbers of variables; several have 4 KiB each")
      ->check(CLI::Range(1, kMostVariables));
  add_list(app, "--transports", choice_.transports,
           "shm (shared memory), tcp (over the loopback interface) or both");
  app.add_option("--seconds", seconds_, "how long a turn is, about; it has at least 6 steps")
      ->check(CLI::Range(0.0, kLongestTurn))
      ->capture_default_str();
  app.footer(
      "A step pushes the gradients of all variables and pulls their parameters. Before each step the worker\n"
      "rewrites its gradients, as training does, which is not timed. Times are medians over all samples of\n"
      "all workers, in microseconds of a step; workers do not wait for each other. All subjects\n"
      "of a line are measured in the same run, in turns, and what was pulled is verified. The columns x\n"
      "are a subject's time divided by Muster's: above 1, Muster is faster.\n"
      "  muster       the server updates the parameters by SGD\n"
      "  grpc-unary   gRPC, a call for the push and one for the pull; with shm over Unix sockets\n"
      "  grpc-stream  the same through one stream; the faster of the two counts in x grpc\n"
      "  torch-rpc    PyTorch's RPC over TensorPipe, with tcmalloc where it is installed\n"
      "  floor        the update and a copy of the parameters in one process on one core\n"
      "Servers of gRPC and torch-rpc update nothing: they keep what was pushed. They get all variables as\n"
      "one message. A thousand variables of 4 KiB are measured beside one of 4 MiB. The exit code is 1 when\n"
      "a subject failed or gave a wrong result.\n\n"
      "  muster bench ps --workers 1 --servers 1 --transports shm --json ps.json\n"
      "  muster bench ps --sizes 16M --variables 1 --peers grpc-stream,torch-rpc");
}

void Bench::check() {
  for (const auto& name : choice_.transports) check_is_one_of("--transports", name, transports());
  flags_.check();
  choice_.workers = flags_.workers;
  choice_.sizes = parse_sizes(sizes_);
}

std::vector<PeerState> Bench::peers(const Surroundings& surroundings) {
  settings_.python = find_torch_python(python_candidates(surroundings.search_path()));
  return ps::peers(surroundings, settings_.python);
}

std::string Bench::title() const {
  return fmt::format("a push and a pull of float32, medians of {} of about {:g} s", flags_.turns(), seconds_);
}

std::vector<Group> Bench::groups(const Surroundings& surroundings, const std::vector<std::string>& peers) {
  settings_.peers = peers;
  settings_.programs = surroundings.programs;
  settings_.baseline = flags_.baseline;
  settings_.allocator = find_allocator();
  std::vector<Group> groups;
  for (const auto& each : cases(choice_)) {
    const Measurement measurement = {
        .label = fmt::format("{} x {}", each.variables, format_size(each.bytes)),
        .turn = [this](RunningSubject& subject, std::optional<double> us) { return take_turn(subject, us); },
        .report =
            [this, each](const std::vector<Series>& measured, Output& output) {
              Point point = {.of = each, .results = {}};
              for (const auto& series : measured) point.results.push_back(summarise(series));
              report(point, output);
            }};
    groups.push_back({.subjects = subjects(settings_, each), .measurements = {measurement}});
  }
  return groups;
}

// As many steps again before the first sample: others have had the caches, and workers do not begin together.
Turn Bench::take_turn(RunningSubject& subject, std::optional<double> fastest_us) const {
  const int workers = subject.command().workers;
  const int batch = fastest_us ? batch_of(workers, *fastest_us) : 1;
  const std::string command =
      fmt::format("run {} {} {}", batch, fastest_us ? kSamples : kFirstSamples, batch);
  const auto lines = subject.ask(command);
  const auto samples = parse_samples(lines, workers);
  if (!samples) subject.reject(command, lines);
  const auto answers = subject.ask("verify");
  const auto verified = parse_verification(answers, workers);
  if (!verified) subject.reject("verify", answers);
  Turn turn = {.samples = {}, .verified = *verified};
  for (const double us : *samples) turn.samples.push_back({.us = us});
  return turn;
}

// So many that a turn takes its time, and that the sum of all gradients is exact.
int Bench::batch_of(int workers, double fastest_us) const {
  const double wanted = seconds_ * 1e6 / (kSamples + 1) / std::max(fastest_us, 0.01);
  const double exact = kLargestSum / workers / (static_cast<double>(flags_.rounds + 1) * (kSamples + 1));
  return static_cast<int>(std::max(1.0, std::min(wanted, exact)));
}

void Bench::report(const Point& point, Output& output) {
  if (points_.empty() || points_.back().of.transport != point.of.transport)
    output.print(fmt::format("\n{}\n{}", point.of.transport, table_head()));
  output.print(table_row(point));
  for (const auto& result : point.results) output.write_json(to_json(point, result));
  points_.push_back(point);
}

std::string Bench::closing() const {
  const auto text = bars(points_);
  return text.empty() ? "" : "\nbars, with one worker and one server: a time divided by Muster's\n" + text;
}

}  // namespace muster::detail::bench::ps
