#include "bench/train/bench.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "bench/train/plot.h"
#include "muster/base/cpu.h"
#include "muster/base/error.h"
#include "muster/base/tune.h"

namespace muster::detail::bench::train {
namespace {

constexpr int kFirstWarmup = 3;
constexpr int kWarmup = 1;  // of each turn: others have had the caches, and the workers begin together
constexpr int kLeastSteps = 3;
constexpr double kMostSteps = 1e6;

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& model : models()) names.push_back(model.name);
  return names;
}

std::string table_of_models() {
  std::string text;
  for (const auto& model : models())
    text += fmt::format("  {}  {}, batch {} a worker\n", model.name, model.title, model.batch);
  return text;
}

}  // namespace

Bench::Bench() : Kind({1, 2}), models_(model_names()), optimizers_(optimizers()) {}

void Bench::add_flags(CLI::App& app) {
  add_list(app, "--models", models_, "which of the models below");
  add_list(app, "--optimizers", optimizers_, "sgd (with momentum), adam or both");
  flags_.add_to(app, "what to compare with: ddp,ddp-installed,loop; those that can run if not given");
  flags_.add_plot_to(app);
  app.add_option("--seconds", seconds_, "how long a turn is, about; it has at least 3 steps")
      ->check(CLI::Range(0.0, kLongestTurn))
      ->capture_default_str();
  add_list(app, "--strategies", settings_.strategies,
           "compare Muster's own ways to train instead, by time: allreduce,ps-sync,ps-sync:1,ps-async,"
           "ps-ssp:4,ps-local:8 (with R, S or K)");
  app.add_option("--slow", settings_.slow, "make a worker slower: worker/1:3x (with --strategies)");
  app.add_flag("--floor", settings_.floor, "also measure plain loops side by side: what the hardware allows");
  app.footer(
      "Models:\n" + table_of_models() +
      "\nAll subjects of a model are measured in the same run, in turns, one thread a worker, on random\n"
      "float32 data. samples/s are those of all workers together: medians over the turns, of which each\n"
      "counts the time of its slowest worker. scaling is samples/s divided by workers times those of one\n"
      "worker. The column x is Muster's samples/s divided by the subject's: above 1, Muster is faster.\n"
      "compute, wait and update are milliseconds of a step; DDP waits inside the backward pass, so that\n"
      "its compute has both. Memory is that of one worker: PSS counts a page that n processes map as\n"
      "1/n, and own is what of that is no file.\n"
      "  ddp            PyTorch's DDP over Gloo at its best: BLAS tuned as ours, tcmalloc, gradients in\n"
      "                 buckets; with one worker a plain loop in Python\n"
      "  ddp-installed  the same as it comes: no variable set, no option given\n"
      "  loop           a plain libtorch loop in C++ with torch::optim, one worker\n"
      "  alone          plain loops side by side without communication (--floor)\n"
      "The exit code is 1 when a subject failed, or its loss was not finite.\n\n"
      "  muster bench train --models a,b --optimizers adam --json train.json --plot train.svg\n"
      "  muster bench train --peers ddp --rounds 3 --floor\n"
      "  muster bench train --models c --strategies allreduce,ps-sync,ps-async --slow worker/1:3x\n"
      "With --strategies, samples/s are those whose gradients were used.");
}

void Bench::check() {
  for (const auto& name : models_) check_is_one_of("--models", name, model_names());
  for (const auto& name : optimizers_) check_is_one_of("--optimizers", name, optimizers());
  flags_.check();
  for (const auto& strategy : settings_.strategies) strategy_flags(strategy);
  if (!settings_.strategies.empty()) flags_.peers.clear();
  if (settings_.strategies.empty() && !settings_.slow.empty())
    throw InvalidArgument("--slow is for --strategies: peers can't be made slower");
}

std::vector<PeerState> Bench::peers(const Surroundings& surroundings) {
  if (!settings_.strategies.empty()) return {};
  settings_.python = find_torch_python(python_candidates(surroundings.search_path()));
  return train::peers(surroundings, settings_.python);
}

std::string Bench::title() const {
  return fmt::format("training on random float32, median of {} of about {:g} s", flags_.turns(), seconds_);
}

std::vector<Group> Bench::groups(const Surroundings& surroundings, const std::vector<std::string>& peers) {
  settings_.peers = peers;
  settings_.programs = surroundings.programs;
  settings_.baseline = flags_.baseline;
  settings_.allocator = find_allocator();
  // One core for each worker, whatever their number: so one worker can be compared with two.
  for (const auto& [name, value] : tuning(CpuFeatures::detect(), 1, 1, surroundings.environment))
    settings_.tuning[name] = value;

  std::vector<Group> groups;
  for (const auto& model : models()) {
    if (std::find(models_.begin(), models_.end(), model.name) == models_.end()) continue;
    for (const auto& optimizer : optimizers_) {
      const Measurement measurement = {
          .label = "training",
          .turn = [this](RunningSubject& subject,
                         std::optional<double> us) { return take_turn(subject, us); },
          .report =
              [this, model, optimizer](const std::vector<Series>& measured, Output& output) {
                Point point = {.model = model, .optimizer = optimizer, .results = {}};
                for (const auto& series : measured) point.results.push_back(summarise(series, model.batch));
                report(point, output);
              }};
      groups.push_back(
          {.subjects = subjects(settings_, model, optimizer, flags_.workers), .measurements = {measurement}});
    }
  }
  return groups;
}

// The first turn only says how many steps the others are to have.
Turn Bench::take_turn(RunningSubject& subject, std::optional<double> fastest_us) const {
  int steps = kLeastSteps;
  std::string command = fmt::format("train {} {}", kFirstWarmup, steps);
  if (fastest_us && settings_.strategies.empty()) {
    steps = std::max(kLeastSteps, static_cast<int>(std::min(seconds_ * 1e6 / *fastest_us, kMostSteps)));
    command = fmt::format("train {} {}", kWarmup, steps);
  } else if (fastest_us) {
    steps = 0;
    command = fmt::format("train-for {}", seconds_);
  }
  const auto lines = subject.ask(command);
  auto sample = parse_answers(lines, steps);
  if (!sample) subject.reject(command, lines);
  if (!std::isfinite(sample->parts.at("loss")))
    raise<SubjectFailed>("{}: the loss is {} after '{}', and should be finite", subject.command().name(),
                         sample->parts.at("loss"), command);
  if (const auto memory = memory_of(subject.pids())) {
    sample->parts.merge(
        std::map<std::string, double>{{"rss", memory->rss}, {"pss", memory->pss}, {"own", memory->own}});
  }
  return {.samples = {*sample}};
}

void Bench::report(const Point& point, Output& output) {
  output.print("\n" + to_table(point));
  for (const auto& result : point.results) output.write_json(to_json(point, result));
  points_.push_back(point);
}

std::string Bench::plot() const {
  return plot_svg(points_);
}

}  // namespace muster::detail::bench::train
