#include "muster/run_command.h"

#include <optional>

#include <CLI/CLI.hpp>

#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/launcher.h"

namespace muster::detail {

struct RunCommand::Impl {
  CLI::App* app = nullptr;
  LaunchOptions options;
  std::optional<int> servers;
  std::string grace = "5s";
  bool no_tune = false;
};

RunCommand::RunCommand(CLI::App& parent) : impl_(std::make_unique<Impl>()) {
  auto& options = impl_->options;
  auto* app = parent.add_subcommand(
      "run", "start the tasks of a job on this node, watch them, and end them together");
  impl_->app = app;
  app->add_option("--workers", options.spec.workers, "workers of the whole job")->capture_default_str();
  app->add_option("--ps", impl_->servers,
                  "parameter servers of the whole job (default: 1 with --strategy ps-..., else 0)");
  app->add_option(
         "--max-restarts", options.max_restarts,
         "how often all tasks start again after a failure, or with --strategy ps-... the one that failed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->add_option("--log-dir", options.log_dir,
                  "keep the output of each task and of the launcher here, in a folder for each run");
  app->add_option("--tee", options.tee, "keep all that is shown in this file too");
  app->add_option("--only", options.only,
                  "show the output of these tasks only: worker/0, or ps for all servers")
      ->delimiter(',')
      ->allow_extra_args(false);
  app->add_flag("--timestamps", options.timestamps, "show the local time in front of each line");
  app->add_option("--grace", impl_->grace, "time between TERM and KILL when tasks are stopped")
      ->capture_default_str();
  app->add_flag("--oversubscribe", options.oversubscribe,
                "start more tasks than this node can take, which else is refused");
  app->add_flag("--no-tune", impl_->no_tune,
                "do not choose BLAS kernel, instruction set and threads for the tasks");
  app->add_option("--nnodes", options.spec.nodes, "nodes of the job; run the same command on each")
      ->group("Several nodes")
      ->capture_default_str();
  app->add_option("--node-rank", options.node, "which of them this is, from 0")
      ->group("Several nodes")
      ->capture_default_str();
  // The tasks get them as variables.
  options.config.add_job_flags(*app);
  app->add_option("program", options.command, "the program and its arguments, after --")
      ->required()
      ->option_text("program args...");
  app->footer(
      "Each task is told who it is by MUSTER_*, TF_CONFIG and torchrun's variables. The exit code is 0,\n"
      "or that of the task that failed (128 + signal when a signal ended it). With --strategy ps-... the\n"
      "job goes on without a worker that fails, unless it was the last.\n\n"
      "  muster run --workers 2 --precision bf16 -- mnist --epochs 5\n"
      "  muster run --workers 8 --nnodes 2 --node-rank 0 --coordinator h1:2222 -- train    # on h1\n"
      "  muster run --workers 8 --nnodes 2 --node-rank 1 --coordinator h1:2222 -- train    # on h2");
}

RunCommand::~RunCommand() = default;

bool RunCommand::chosen() const {
  return impl_->app->parsed();
}

int RunCommand::run() {
  auto& options = impl_->options;
  const auto grace = parse_duration(impl_->grace);
  if (!grace) raise<InvalidArgument>("--grace {} is not a duration such as 5s", impl_->grace);
  options.grace = *grace;
  options.tune = !impl_->no_tune;
  options.config.read_environment(Environment::of_process());
  options.spec.servers = impl_->servers.value_or(options.config.uses_servers() ? 1 : 0);
  Launcher launcher(options);
  return launcher.run();
}

}  // namespace muster::detail
