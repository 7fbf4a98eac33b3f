#include "bench/train/command.h"

#include <algorithm>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/driver/flags.h"
#include "bench/driver/output.h"
#include "bench/train/driver.h"
#include "bench/train/plot.h"
#include "muster/base/cpu.h"
#include "muster/base/tune.h"

namespace muster {
namespace {

constexpr double kLongestTurn = 3600;

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& model : train_models()) names.push_back(model.name);
  return names;
}

std::string table_of_models() {
  std::string text;
  for (const auto& model : train_models())
    text += fmt::format("  {}  {}, batch {} a worker\n", model.name, model.title, model.batch);
  return text;
}

}  // namespace

struct BenchTrainCommand::Impl {
  CLI::App* app = nullptr;
  BenchFlags flags = {.workers = {1, 2}};
  TrainOptions options = {.optimizers = train_optimizers()};
  std::vector<std::string> models = model_names();

  void check();
  void choose_subjects(BenchOutput& output);
};

BenchTrainCommand::BenchTrainCommand(CLI::App& parent) : impl_(std::make_unique<Impl>()) {
  auto& options = impl_->options;
  auto* app = parent.add_subcommand("train", "measure training instead, beside PyTorch's DDP");
  impl_->app = app;
  app->add_option("--models", impl_->models, "which of the models below")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  app->add_option("--optimizers", options.optimizers, "sgd (with momentum), adam or both")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  impl_->flags.add_to(*app, "what to compare with: ddp,ddp-installed,loop; those that can run if not given");
  impl_->flags.add_plot_to(*app);
  app->add_option("--seconds", options.seconds, "how long a turn is, about; it has at least 3 steps")
      ->check(CLI::Range(0.0, kLongestTurn))
      ->capture_default_str();
  app->add_option("--strategies", options.settings.strategies,
                  "compare Muster's own ways to train instead, by time: allreduce,ps-sync,ps-sync:1,ps-async,"
                  "ps-ssp:4,ps-local:8 (with R, S or K)")
      ->delimiter(',')
      ->allow_extra_args(false);
  app->add_option("--slow", options.settings.slow, "make a worker slower: worker/1:3x (with --strategies)");
  app->add_flag("--floor", options.settings.floor,
                "also measure plain loops side by side: what the hardware allows");
  app->footer(
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

BenchTrainCommand::~BenchTrainCommand() = default;

bool BenchTrainCommand::chosen() const {
  return impl_->app->parsed();
}

void BenchTrainCommand::Impl::check() {
  for (const auto& name : models) check_is_one_of("--models", name, model_names());
  for (const auto& name : options.optimizers) check_is_one_of("--optimizers", name, train_optimizers());
  flags.check();
  for (const auto& strategy : options.settings.strategies) strategy_flags(strategy);
  if (options.settings.strategies.empty() && !options.settings.slow.empty())
    throw InvalidArgument("--slow is for --strategies: peers can't be made slower");
  for (const auto& model : train_models()) {
    if (std::find(models.begin(), models.end(), model.name) != models.end()) options.models.push_back(model);
  }
}

void BenchTrainCommand::Impl::choose_subjects(BenchOutput& output) {
  auto& settings = options.settings;
  const auto& environment = options.stage.environment;
  settings.programs = folder_of_programs();
  check_is_built(settings.programs, "muster_bench_train");
  settings.python = find_torch_python(python_candidates(environment.get("PATH").value_or("/usr/bin:/bin")));
  const auto peers = train_peers(settings.programs, settings.python);
  if (settings.strategies.empty()) settings.peers = choose_from(peers, flags.peers);
  for (const auto& peer : peers) {
    if (settings.strategies.empty() && flags.peers.empty() && !peer.missing.empty())
      output.on_notice(fmt::format("{} is left out: it {}", peer.name, peer.missing));
  }
  settings.allocator = find_allocator();
  // One core for each worker, whatever their number: so one worker can be compared with two.
  for (const auto& [name, value] : tuning(CpuFeatures::detect(), 1, 1, environment))
    settings.tuning[name] = value;
}

int BenchTrainCommand::run() {
  auto& options = impl_->options;
  auto& flags = impl_->flags;
  impl_->check();
  options.workers = flags.workers;
  options.rounds = flags.rounds;
  options.stage = flags.stage();

  BenchOutput output(flags.config.progress, flags.files);
  impl_->choose_subjects(output);
  std::vector<TrainPoint> points;
  options.on_point = [&](const TrainPoint& point) {
    output.print("\n" + to_table(point));
    for (const auto& result : point.results) output.write_json(to_json(point, result));
    points.push_back(point);
  };
  return output.finish(
      [&] {
        TrainDriver driver(options, output);
        output.print(fmt::format("training on random float32, median of {} of about {:g} s\n",
                                 options.rounds == 1 ? "one turn" : fmt::format("{} turns", options.rounds),
                                 options.seconds));
        return driver.run();
      },
      [&] { return plot_training(points); });
}

}  // namespace muster
