#include "bench/collective/command.h"

#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/collective/driver.h"
#include "bench/collective/plot.h"
#include "bench/driver/flags.h"
#include "bench/driver/output.h"
#include "bench/ps/command.h"
#include "bench/train/command.h"
#include "muster/base/error.h"
#include "muster/collective/choice.h"

namespace muster {

struct BenchCommand::Impl {
  CLI::App* app = nullptr;
  BenchFlags flags = {.workers = {2}};
  BenchOptions options;
  std::string sizes = "8:64M";
  std::string transport = "shm";
  std::string plot_value = "time";
  bool explain = false;
  std::unique_ptr<BenchTrainCommand> train;
  std::unique_ptr<BenchPsCommand> ps;

  void check();
  void check_nothing_before(const std::string& word) const;
  int measure();
};

BenchCommand::BenchCommand(CLI::App& bench) : impl_(std::make_unique<Impl>()) {
  auto& options = impl_->options;
  auto& settings = options.settings;
  auto* app = &bench;
  impl_->app = app;
  app->add_option("collective", settings.collective,
                  fmt::format("one of {}", fmt::join(bench_collectives(), ", ")))
      ->capture_default_str();
  impl_->flags.add_to(*app, "what to compare with: gloo,openmpi,mpich; those that are built if not given");
  impl_->flags.add_plot_to(*app);
  app->add_option("--sizes", impl_->sizes,
                  "bytes: 8:256M doubles from the first to the last; or a list: 64K,1M,25M")
      ->capture_default_str();
  app->add_option("--transport", impl_->transport, "shm (shared memory) or tcp (over the loopback interface)")
      ->capture_default_str();
  app->add_option("--samples", options.samples, "samples of each turn")
      ->check(CLI::Range(1, kMostTurns))
      ->capture_default_str();
  app->add_option("--plot-value", impl_->plot_value, "what the plot shows: time or bandwidth")
      ->capture_default_str();
  app->add_option("--memory", settings.memory, "Muster's buffers: arena, heap or both")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group("Muster")
      ->capture_default_str();
  app->add_option("--algorithm", settings.algorithms,
                  "Muster's algorithms, one after the other, instead of its own choice")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group("Muster");
  app->add_flag("--explain", impl_->explain, "say which algorithm Muster chooses, and measure nothing")
      ->group("Muster");
  app->add_option("flags", settings.flags, "more flags for muster_bench_rank, after --")
      ->option_text("flags...");
  app->footer(
      "All subjects are measured in the same run, in turns; every result is verified on every rank.\n"
      "Times are medians over all samples, in microseconds; a sample is that of the slowest rank.\n"
      "Bandwidths are those of nccl-tests. The column x is a subject's time divided by Muster's:\n"
      "above 1, Muster is faster. The floor is what the memory alone would allow. The exit code is 1\n"
      "when a subject failed or gave a wrong result.\n\n"
      "  muster bench allreduce --workers 2,4 --sizes 8:256M --peers gloo,openmpi,mpich --plot a.svg\n"
      "  muster bench alltoall --transport tcp --json alltoall.json");
  impl_->train = std::make_unique<BenchTrainCommand>(*app);
  impl_->ps = std::make_unique<BenchPsCommand>(*app);
}

BenchCommand::~BenchCommand() = default;

void BenchCommand::Impl::check() {
  auto& settings = options.settings;
  check_is_one_of("muster bench", settings.collective, bench_collectives());
  check_is_one_of("--transport", transport, {"shm", "tcp"});
  check_is_one_of("--plot-value", plot_value, {"time", "bandwidth"});
  for (const auto& memory : settings.memory) check_is_one_of("--memory", memory, {"arena", "heap"});
  if (!settings.flags.empty() && !settings.flags.front().starts_with("-"))
    raise<InvalidArgument>("'{}' was not expected; flags for muster_bench_rank come after --",
                           settings.flags.front());
  if (settings.collective == "barrier" && !flags.files.plot.empty())
    raise<InvalidArgument>("--plot {}: a barrier has no sizes to draw over", flags.files.plot);
  flags.check();
  options.sizes = parse_sizes(sizes);
  settings.tcp = transport == "tcp";
}

void BenchCommand::Impl::check_nothing_before(const std::string& word) const {
  for (const auto* option : app->get_options()) {
    if (option->count() > 0)
      raise<InvalidArgument>("muster bench {}: its flags come after the word {}; {} stands before it", word,
                             word, option->get_name());
  }
}

int BenchCommand::run() {
  if (impl_->train->chosen()) {
    impl_->check_nothing_before("train");
    return impl_->train->run();
  }
  if (impl_->ps->chosen()) {
    impl_->check_nothing_before("ps");
    return impl_->ps->run();
  }
  if (impl_->explain) return explain();
  impl_->check();
  return impl_->measure();
}

int BenchCommand::Impl::measure() {
  auto& settings = options.settings;
  options.workers = flags.workers;
  options.rounds = flags.rounds;
  options.stage = flags.stage();
  settings.programs = folder_of_programs();
  settings.peers = choose_peers(flags.peers, settings.programs,
                                options.stage.environment.get("PATH").value_or("/usr/bin:/bin"));
  check_is_built(settings.programs, "muster_bench_rank");

  BenchOutput output(flags.config.progress, flags.files);
  std::optional<BenchTable> table;
  std::vector<BenchPoint> points;
  options.on_variants = [&](const std::vector<BenchVariant>& variants) {
    const std::string head_before = table ? table->head() : "";
    table.emplace(settings.collective, variants);
    if (table->head() != head_before) output.print("\n" + table->head());
  };
  options.on_point = [&](const BenchPoint& point) {
    output.print(table->row(point));
    for (const auto& result : point.results) output.write_json(to_json(settings.collective, point, result));
    points.push_back(point);
  };
  return output.finish(
      [&] {
        BenchDriver driver(options, output);
        output.print(fmt::format("{}{} over {}, medians of {} samples\n", settings.collective,
                                 settings.collective == "barrier" ? "" : " of float32",
                                 settings.tcp ? "TCP on the loopback interface" : "shared memory",
                                 options.rounds * options.samples));
        return driver.run();
      },
      [&] {
        const auto value = plot_value == "time" ? PlotValue::kTime : PlotValue::kBusBandwidth;
        return plot_svg(settings.collective, value, points);
      });
}

int explain() {
  fmt::print("{}", explain_choices());
  return 0;
}

}  // namespace muster
