#include "bench/driver/flags.h"

#include <algorithm>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/cluster/identity.h"

namespace muster {
namespace {

constexpr int kMostRanks = 128;  // the sums of the data that is verified are exact up to here

}  // namespace

void BenchFlags::add_to(CLI::App& app, const std::string& peers_text) {
  app.add_option("--workers", workers, "numbers of ranks, each in turn: 2,4")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--peers", peers, peers_text)->delimiter(',')->allow_extra_args(false);
  app.add_option("--rounds", rounds, "how often each variant has its turn")
      ->check(CLI::Range(1, kMostTurns))
      ->capture_default_str();
  app.add_option("--timeout", timeout, "how long a variant may take for one turn")->capture_default_str();
  app.add_option("--json", files.json, "write each result to this file, one object a line");
  config.add_flags(app, {"progress"});
}

void BenchFlags::add_plot_to(CLI::App& app) {
  app.add_option("--plot", files.plot, "draw the results into this file, as SVG");
}

void BenchFlags::check() {
  std::sort(workers.begin(), workers.end());
  workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
  for (const int ranks : workers) {
    if (ranks < 1 || ranks > kMostRanks)
      raise<InvalidArgument>("--workers: {} is not between 1 and {}", ranks, kMostRanks);
  }
  const auto duration = parse_duration(timeout);
  if (!duration || duration->count() == 0)
    raise<InvalidArgument>("--timeout {} is not a duration such as 2m or 30s", timeout);
}

BenchStage::Options BenchFlags::stage() {
  config.read_environment(Environment::of_process());
  BenchStage::Options options = {.environment = config.environment, .timeout = *parse_duration(timeout)};
  forget_launchers(options.environment);
  return options;
}

std::filesystem::path folder_of_programs() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

void check_is_one_of(const std::string& what, const std::string& value,
                     const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) == known.end())
    raise<InvalidArgument>("{}: '{}' is not one of {}{}", what, value, fmt::join(known, ", "),
                           suggestion(value, known));
}

void check_is_built(const std::filesystem::path& folder, const std::string& program) {
  if (!std::filesystem::exists(folder / program))
    raise<InvalidArgument>("{} is not in {}: build it (scripts/build release)", program, folder.string());
}

}  // namespace muster
