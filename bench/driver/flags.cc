#include "bench/driver/flags.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail::bench {
namespace {

constexpr int kMostRanks = 128;  // the sums of the data that is verified are exact up to here

}  // namespace

void Flags::add_to(CLI::App& app, const std::string& peers_text) {
  add_list(app, "--workers", workers, "numbers of ranks, each in turn: 2,4");
  add_list(app, "--peers", peers, peers_text);
  app.add_option("--baseline", baseline,
                 "compare with another build of Muster too, whose programs are in this folder");
  app.add_option("--rounds", rounds, "how often each variant has its turn")
      ->check(CLI::Range(1, kMostTurns))
      ->capture_default_str();
  app.add_option("--timeout", timeout, "how long a variant may take for one turn")->capture_default_str();
  app.add_option("--json", files.json, "write each result to this file, one object a line");
  config.add_flags(app, {"progress"});
}

void Flags::add_plot_to(CLI::App& app) {
  app.add_option("--plot", files.plot, "draw the results into this file, as SVG");
}

void Flags::check() {
  std::sort(workers.begin(), workers.end());
  workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
  for (const int ranks : workers) {
    if (ranks < 1 || ranks > kMostRanks)
      raise<InvalidArgument>("--workers: {} is not between 1 and {}", ranks, kMostRanks);
  }
  const auto duration = parse_duration(timeout);
  if (!duration || duration->count() == 0)
    raise<InvalidArgument>("--timeout {} is not a duration such as 2m or 30s", timeout);
  if (!baseline.empty()) baseline = std::filesystem::absolute(baseline);
  config.read_environment(Environment::of_process());
}

std::chrono::milliseconds Flags::answer_timeout() const {
  return parse_duration(timeout).value();
}

std::string Flags::turns() const {
  return rounds == 1 ? "one turn" : fmt::format("{} turns", rounds);
}

}  // namespace muster::detail::bench
