#include "muster/bench_command.h"

#include <algorithm>
#include <fstream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/base/config.h"
#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/bench_driver.h"
#include "muster/bench_plot.h"
#include "muster/cluster/identity.h"
#include "muster/collective/choice.h"
#include "muster/observe/progress.h"

namespace muster {
namespace {

constexpr int kMostRanks = 128;  // the sums of the data that is verified are exact up to here
constexpr int kMostTurns = 100000;
constexpr int kProgressSteps = 1000;

std::ofstream open_for_writing(const std::string& flag, const std::string& path) {
  std::ofstream file(path);
  if (!file) raise<SystemError>("{} {}: the file can't be written: {}", flag, path, describe_errno(errno));
  return file;
}

void check_is_one_of(const std::string& what, const std::string& value,
                     const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) == known.end())
    raise<InvalidArgument>("{}: '{}' is not one of {}{}", what, value, fmt::join(known, ", "),
                           suggestion(value, known));
}

/// Prints the table as it grows, keeps the progress line below it, and writes the files.
class Reporter : public BenchObserver {
 public:
  struct Files {
    std::string json;
    std::string plot;
    PlotValue plot_value = PlotValue::kTime;
  };

  Reporter(std::string collective, ProgressStyle style, Files files)
      : collective_(std::move(collective)), progress_(style, kProgressSteps), files_(std::move(files)) {
    if (!files_.json.empty()) json_ = open_for_writing("--json", files_.json);
    if (!files_.plot.empty()) plot_ = open_for_writing("--plot", files_.plot);
  }

  void on_variants(const std::vector<BenchVariant>& variants) override {
    const std::string head_before = table_ ? table_->head() : "";
    table_.emplace(collective_, variants);
    if (table_->head() != head_before) print("\n" + table_->head());
  }

  void on_point(const BenchPoint& point) override {
    print(table_->row(point));
    for (const auto& result : point.results) json_ << to_json(collective_, point, result) << '\n';
    json_.flush();
    points_.push_back(point);
  }

  void on_notice(const std::string& text) override {
    progress_.finish();
    fmt::print(stderr, "muster: {}\n", text);
  }

  void on_progress(double share, const std::string& text) override {
    progress_.update(static_cast<int64_t>(share * kProgressSteps), text);
  }

  void print(const std::string& text) {
    progress_.finish();
    fmt::print("{}", text);
    std::fflush(stdout);
  }

  void finish() {
    progress_.finish();
    if (plot_.is_open()) plot_ << plot_svg(collective_, files_.plot_value, points_) << std::flush;
    if (json_.is_open() && !json_) raise<SystemError>("--json {}: writing failed", files_.json);
    if (plot_.is_open() && !plot_) raise<SystemError>("--plot {}: writing failed", files_.plot);
  }

 private:
  const std::string collective_;
  Progress progress_;
  const Files files_;
  std::ofstream json_;
  std::ofstream plot_;
  std::optional<BenchTable> table_;
  std::vector<BenchPoint> points_;
};

}  // namespace

struct BenchCommand::Impl {
  CLI::App* app = nullptr;
  Config config;
  BenchOptions options = {.workers = {2}};
  std::string sizes = "8:64M";
  std::string transport = "shm";
  std::string timeout = "2m";
  std::string json;
  std::string plot;
  std::string plot_value = "time";
  bool explain = false;

  void check();
};

BenchCommand::BenchCommand(CLI::App& parent) : impl_(std::make_unique<Impl>()) {
  auto& options = impl_->options;
  auto& settings = options.settings;
  auto* app = parent.add_subcommand("bench", "measure a collective, beside other libraries, on this machine");
  impl_->app = app;
  app->add_option("collective", settings.collective,
                  fmt::format("one of {}", fmt::join(bench_collectives(), ", ")))
      ->capture_default_str();
  app->add_option("--workers", options.workers, "numbers of ranks, each in turn: 2,4")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  app->add_option("--sizes", impl_->sizes,
                  "bytes: 8:256M doubles from the first to the last; or a list: 64K,1M,25M")
      ->capture_default_str();
  app->add_option("--peers", settings.peers,
                  "what to compare with: gloo,openmpi,mpich; those that are built if not given")
      ->delimiter(',')
      ->allow_extra_args(false);
  app->add_option("--transport", impl_->transport, "shm (shared memory) or tcp (over the loopback interface)")
      ->capture_default_str();
  app->add_option("--rounds", options.rounds, "how often each variant has its turn at each size")
      ->check(CLI::Range(1, kMostTurns))
      ->capture_default_str();
  app->add_option("--samples", options.samples, "samples of each turn")
      ->check(CLI::Range(1, kMostTurns))
      ->capture_default_str();
  app->add_option("--timeout", impl_->timeout, "how long a variant may take for one turn")
      ->capture_default_str();
  app->add_option("--json", impl_->json, "write each result to this file, one object a line");
  app->add_option("--plot", impl_->plot, "draw the results into this file, as SVG");
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
  impl_->config.add_flags(*app, {"progress"});
  app->footer(
      "All subjects are measured in the same run, in turns; every result is verified on every rank.\n"
      "Times are medians over all samples, in microseconds; a sample is that of the slowest rank.\n"
      "Bandwidths are those of nccl-tests. The column x is a subject's time divided by Muster's:\n"
      "above 1, Muster is faster. The floor is what the memory alone would allow. The exit code is 1\n"
      "when a subject failed or gave a wrong result.\n\n"
      "  muster bench allreduce --workers 2,4 --sizes 8:256M --peers gloo,openmpi,mpich --plot a.svg\n"
      "  muster bench alltoall --transport tcp --json alltoall.json");
}

BenchCommand::~BenchCommand() = default;

bool BenchCommand::chosen() const {
  return impl_->app->parsed();
}

void BenchCommand::Impl::check() {
  auto& settings = options.settings;
  check_is_one_of("muster bench", settings.collective, bench_collectives());
  check_is_one_of("--transport", transport, {"shm", "tcp"});
  check_is_one_of("--plot-value", plot_value, {"time", "bandwidth"});
  for (const auto& memory : settings.memory) check_is_one_of("--memory", memory, {"arena", "heap"});
  std::sort(options.workers.begin(), options.workers.end());
  options.workers.erase(std::unique(options.workers.begin(), options.workers.end()), options.workers.end());
  for (const int ranks : options.workers) {
    if (ranks < 1 || ranks > kMostRanks)
      raise<InvalidArgument>("--workers: {} is not between 1 and {}", ranks, kMostRanks);
  }
  if (!settings.flags.empty() && !settings.flags.front().starts_with("-"))
    raise<InvalidArgument>("'{}' was not expected; flags for muster_bench_rank come after --",
                           settings.flags.front());
  if (settings.collective == "barrier" && !plot.empty())
    raise<InvalidArgument>("--plot {}: a barrier has no sizes to draw over", plot);
  const auto duration = parse_duration(timeout);
  if (!duration || duration->count() == 0)
    raise<InvalidArgument>("--timeout {} is not a duration such as 2m or 30s", timeout);
  options.timeout = *duration;
  options.sizes = parse_sizes(sizes);
  settings.tcp = transport == "tcp";
}

int BenchCommand::run() {
  if (impl_->explain) return explain();
  impl_->check();
  auto& options = impl_->options;
  auto& settings = options.settings;
  impl_->config.read_environment(Environment::of_process());
  options.environment = impl_->config.environment;
  forget_launchers(options.environment);
  settings.programs = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  settings.peers = choose_peers(settings.peers, settings.programs,
                                options.environment.get("PATH").value_or("/usr/bin:/bin"));
  if (!std::filesystem::exists(settings.programs / "muster_bench_rank"))
    raise<InvalidArgument>("muster_bench_rank is not in {}: build it (scripts/build release)",
                           settings.programs.string());
  Reporter reporter(
      settings.collective, impl_->config.progress,
      {.json = impl_->json,
       .plot = impl_->plot,
       .plot_value = impl_->plot_value == "time" ? PlotValue::kTime : PlotValue::kBusBandwidth});
  try {
    BenchDriver driver(options, reporter);
    reporter.print(fmt::format("{}{} over {}, medians of {} samples\n", settings.collective,
                               settings.collective == "barrier" ? "" : " of float32",
                               settings.tcp ? "TCP on the loopback interface" : "shared memory",
                               options.rounds * options.samples));
    const bool all_well = driver.run();
    reporter.finish();
    return all_well ? 0 : 1;
  } catch (const Interrupted& interrupted) {
    reporter.on_notice(interrupted.what());
    return 128 + interrupted.signal();
  }
}

int explain() {
  fmt::print("{}", explain_choices());
  return 0;
}

}  // namespace muster
