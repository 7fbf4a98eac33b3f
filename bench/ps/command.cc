#include "bench/ps/command.h"

#include <algorithm>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/driver/flags.h"
#include "bench/driver/output.h"
#include "bench/ps/driver.h"
#include "bench/train/subjects.h"
#include "muster/base/error.h"

namespace muster {
namespace {

constexpr double kLongestTurn = 3600;
constexpr int kMostServers = 128;
constexpr int kMostVariables = 100000;

}  // namespace

struct BenchPsCommand::Impl {
  CLI::App* app = nullptr;
  BenchFlags flags = {.workers = {1, 2}};
  PsOptions options;
  PsChoice choice = {.transports = ps_transports(), .servers = {1, 2}, .variables = {1, 1000}};
  std::string sizes = "4K,64K,1M,4M,16M,64M";

  void check();
  void choose_subjects(BenchOutput& output);
};

BenchPsCommand::BenchPsCommand(CLI::App& parent) : impl_(std::make_unique<Impl>()) {
  auto& choice = impl_->choice;
  auto* app =
      parent.add_subcommand("ps", "measure pushes and pulls of parameters, beside gRPC and PyTorch's RPC");
  impl_->app = app;
  impl_->flags.add_to(
      *app, "what to compare with: grpc-unary,grpc-stream,torch-rpc; those that can run if not given");
  app->add_option("--servers", choice.servers, "numbers of parameter servers, each in turn: 1,2")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, kMostServers))
      ->capture_default_str();
  app->add_option("--sizes", impl_->sizes,
                  "bytes of a variable: 4K,1M; or 4K:64M doubles from the first to the last")
      ->capture_default_str();
  app->add_option("--variables", choice.variables, "numbers of variables; several have 4 KiB each")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, kMostVariables))
      ->capture_default_str();
  app->add_option("--transports", choice.transports,
                  "shm (shared memory), tcp (over the loopback interface) or both")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  app->add_option("--seconds", impl_->options.seconds, "how long a turn is, about; it has at least 6 steps")
      ->check(CLI::Range(0.0, kLongestTurn))
      ->capture_default_str();
  app->footer(
      "A step pushes the gradients of all variables and pulls their parameters. Times are medians over all\n"
      "samples of all workers, in microseconds of a step; workers do not wait for each other. All subjects\n"
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

BenchPsCommand::~BenchPsCommand() = default;

bool BenchPsCommand::chosen() const {
  return impl_->app->parsed();
}

void BenchPsCommand::Impl::check() {
  for (const auto& name : choice.transports) check_is_one_of("--transports", name, ps_transports());
  flags.check();
  choice.workers = flags.workers;
  choice.sizes = parse_sizes(sizes);
  options.cases = ps_cases(choice);
}

void BenchPsCommand::Impl::choose_subjects(BenchOutput& output) {
  auto& settings = options.settings;
  settings.programs = folder_of_programs();
  check_is_built(settings.programs, "muster_bench_ps");
  settings.python =
      find_torch_python(python_candidates(options.stage.environment.get("PATH").value_or("/usr/bin:/bin")));
  const auto peers = ps_peers(settings.programs, settings.python);
  settings.peers = choose_from(peers, flags.peers);
  for (const auto& peer : peers) {
    if (flags.peers.empty() && !peer.missing.empty())
      output.on_notice(fmt::format("{} is left out: it {}", peer.name, peer.missing));
  }
  settings.allocator = find_allocator();
}

int BenchPsCommand::run() {
  auto& options = impl_->options;
  auto& flags = impl_->flags;
  impl_->check();
  options.rounds = flags.rounds;
  options.stage = flags.stage();

  BenchOutput output(flags.config.progress, flags.files);
  impl_->choose_subjects(output);
  std::vector<PsPoint> points;
  options.on_point = [&](const PsPoint& point) {
    if (points.empty() || points.back().of.transport != point.of.transport)
      output.print(fmt::format("\n{}\n{}", point.of.transport, ps_table_head()));
    output.print(ps_table_row(point));
    for (const auto& result : point.results) output.write_json(to_json(point, result));
    points.push_back(point);
  };
  return output.finish(
      [&] {
        PsDriver driver(options, output);
        output.print(fmt::format("a push and a pull of float32, medians of {} of about {:g} s\n",
                                 options.rounds == 1 ? "one turn" : fmt::format("{} turns", options.rounds),
                                 options.seconds));
        const bool all_well = driver.run();
        if (const auto bars = ps_bars(points); !bars.empty())
          output.print("\nbars, with one worker and one server: a time divided by Muster's\n" + bars);
        return all_well;
      },
      {});
}

}  // namespace muster
