#include "muster/run_command.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/flags.h"
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/base/text.h"
#include "muster/cluster/identity.h"
#include "muster/dry_run.h"
#include "muster/find_program.h"
#include "muster/host_launcher.h"
#include "muster/launcher.h"
#include "muster/launcher_input.h"

namespace muster::detail {

struct RunCommand::Impl {
  CLI::App* app = nullptr;
  LaunchOptions options;
  std::filesystem::path config_file;
  std::optional<int> workers;
  std::optional<int> servers;
  std::string grace = "5s";
  std::string bind = "none";
  bool no_tune = false;
  bool dry_run = false;
  std::string hosts;
  std::filesystem::path hostfile;
  std::string ssh = "ssh -o BatchMode=yes -o ServerAliveInterval=15";
  bool controlled = false;

  void add_node_flags();
  void check();
  int run_here();
  int run_on_hosts();
  std::vector<std::string> flags_for_hosts() const;
};

RunCommand::RunCommand(CLI::App& parent) : impl_(std::make_unique<Impl>()) {
  auto& options = impl_->options;
  auto* app = parent.add_subcommand(
      "run", "start the tasks of a job on this node, watch them, and end them together");
  impl_->app = app;
  app->add_option("--config", impl_->config_file,
                  "a file with flags, one a line as in workers = 4; those of the command line come first");
  app->add_option(
      "--workers", impl_->workers,
      "workers of the whole job (default: 1, or with --hosts one on each, or the hostfile's slots)");
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
  app->add_option(
         "--env", options.variables,
         "a variable for all tasks: NAME=value, or NAME for the value that it has here; may be given "
         "several times")
      ->allow_extra_args(false);
  app->add_option("--bind", impl_->bind,
                  "bind each task to its share of the cores (cores), to all cores of a NUMA node (numa), or "
                  "not at all (none)")
      ->check(CLI::IsMember({"none", "cores", "numa"}))
      ->capture_default_str();
  app->add_flag("--oversubscribe", options.oversubscribe,
                "start more tasks than this node can take, which else is refused");
  app->add_flag("--no-tune", impl_->no_tune,
                "do not choose BLAS kernel, instruction set and threads for the tasks");
  app->add_flag("--dry-run", impl_->dry_run,
                "start nothing: print what would be started here, with which environment");
  impl_->add_node_flags();
  refuse_empty_values(*app);
  // The tasks get them as variables.
  options.config.add_job_flags(*app);
  app->add_option("program", options.command, "the program and its arguments, after --")
      ->option_text("program args...");
  keep_brackets(*app->get_option("program"));
  app->footer(
      "Each task is told who it is by MUSTER_*, TF_CONFIG and torchrun's variables. The exit code is 0,\n"
      "or that of the task that failed (128 + signal when a signal ended it). With --strategy ps-... the\n"
      "job goes on without a worker that fails, unless it was the last.\n\n"
      "  muster run --workers 2 --precision bf16 -- mnist --epochs 5\n"
      "  muster run --hosts h1,h2 --workers 8 -- program\n"
      "  h1$ muster run --workers 8 --nnodes 2 --node-rank 0 --coordinator h1:2222 -- program\n"
      "  h2$ muster run --workers 8 --nnodes 2 --node-rank 1 --coordinator h1:2222 -- program");
}

void RunCommand::Impl::add_node_flags() {
  constexpr const char* kGroup = "Several nodes";
  app->add_option("--hosts", hosts, "start a launcher on each of these hosts by ssh: h1,user@h2")
      ->group(kGroup);
  app->add_option("--hostfile", hostfile, "the same hosts, one a line, as in h1 slots=4")->group(kGroup);
  app->add_option("--ssh", ssh, "the command that reaches a host, whose name follows it")
      ->group(kGroup)
      ->capture_default_str();
  app->add_option("--nnodes", options.spec.nodes, "nodes of the job; run the same command on each")
      ->group(kGroup)
      ->capture_default_str();
  app->add_option("--node-rank", options.node, "which of them this is, from 0")
      ->group(kGroup)
      ->capture_default_str();
  // How --hosts starts a launcher (launcher_input.h): not for people.
  app->add_flag("--controlled", controlled, "variables and signals come on standard input")->group("");
}

RunCommand::~RunCommand() = default;

bool RunCommand::chosen() const {
  return impl_->app->parsed();
}

void RunCommand::Impl::check() {
  if (options.command.empty()) {
    raise<InvalidArgument>(
        "there is no program to run: it comes after --, with its arguments: muster run --workers 2 -- mnist");
  }
  const auto grace_time = parse_duration(grace);
  if (!grace_time) raise<InvalidArgument>("--grace {} is not a duration such as 5s", grace);
  options.grace = *grace_time;
  options.tune = !no_tune;
  options.binding = bind == "cores"  ? CoreBinding::kCores
                    : bind == "numa" ? CoreBinding::kNuma
                                     : CoreBinding::kNone;
  options.spec.servers = servers.value_or(options.config.uses_servers() ? 1 : 0);
  options.spec.workers = workers.value_or(1);
}

namespace {

// mpirun or srun before `muster run`, where nothing tells the launchers of one another.
void warn_of_many_launchers(const Config& config) {
  std::optional<Identity> identity;
  try {
    identity = find_identity(config);
  } catch (const InvalidArgument&) {
    return;  // Whatever is wrong with those variables: they are not for a launcher.
  }
  if (identity->launcher == "none" || identity->launcher == "TF_CONFIG" || !identity->is_chief()) return;
  const int count = identity->count("worker");
  if (count == 1) return;
  log_warning(
      "{0} started `muster run` {1} times, and each starts a job of its own: let {0} start the program "
      "itself, or make one job of all with --nnodes and --node-rank",
      identity->launcher, count);
}

// Tasks read nothing, whoever thinks of `muster run ... < file`.
void warn_of_input() {
  struct stat status = {};
  if (fstat(STDIN_FILENO, &status) != 0) return;
  int waiting = 0;
  const bool has_more =
      S_ISREG(status.st_mode)
          ? lseek(STDIN_FILENO, 0, SEEK_CUR) < status.st_size
          : S_ISFIFO(status.st_mode) && ioctl(STDIN_FILENO, FIONREAD, &waiting) == 0 && waiting > 0;
  if (has_more)
    log_warning("tasks have an empty standard input, and not this one: give the program a file by its name");
}

}  // namespace

int RunCommand::run() {
  Impl& impl = *impl_;
  if (!impl.config_file.empty()) read_flags_file(*impl.app, impl.config_file);
  auto environment = Environment::of_process();
  if (environment.get("MUSTER_TASK"))
    forget_launchers(environment);  // a task that launches: it is another job
  if (impl.controlled) read_variables(environment);
  impl.options.config.read_environment(environment);
  impl.check();
  if (impl.options.spec.nodes == 1 && impl.hosts.empty() && impl.hostfile.empty())
    warn_of_many_launchers(impl.options.config);
  return impl.hosts.empty() && impl.hostfile.empty() ? impl.run_here() : impl.run_on_hosts();
}

int RunCommand::Impl::run_here() {
  if (app->get_option("--ssh")->count() > 0)
    raise<InvalidArgument>("--ssh has no effect without --hosts or --hostfile");
  if (dry_run) {
    fmt::print("{}", describe_launch(options));
    return 0;
  }
  if (!controlled) warn_of_input();
  Launcher launcher(options);
  if (controlled) obey_input();
  const int code = launcher.run();
  return controlled && code == kSshFailed ? kSshFailed - 1 : code;
}

// What was given, but for what concerns this launcher alone or goes over standard input.
std::vector<std::string> RunCommand::Impl::flags_for_hosts() const {
  constexpr std::array kOwn = {"help", "config",  "hosts",       "hostfile", "ssh",    "tee",
                               "env",  "workers", "coordinator", "job-id",   "dry-run"};
  std::vector<std::string> flags;
  for (const CLI::Option* option : app->get_options({})) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    const std::string& name = option->get_lnames().front();
    if (std::ranges::find(kOwn, name) != kOwn.end()) continue;
    for (const auto& value : option->results()) flags.push_back(fmt::format("--{}={}", name, value));
  }
  return flags;
}

int RunCommand::Impl::run_on_hosts() {
  if (!hosts.empty() && !hostfile.empty())
    raise<InvalidArgument>("--hosts and --hostfile both say which hosts there are: give one of them");
  for (const char* flag : {"--nnodes", "--node-rank"}) {
    if (app->get_option(flag)->count() > 0) {
      raise<InvalidArgument>("{} is for nodes that are started one by one: --hosts and --hostfile start all",
                             flag);
    }
  }
  const auto list = hosts.empty() ? read_hostfile(hostfile) : parse_hosts(hosts);
  options.spec.nodes = static_cast<int>(list.size());
  if (!workers) options.spec.workers = default_workers(list);
  Config& config = options.config;
  if (config.coordinator.empty()) config.coordinator = list.front().address();
  if (config.job_id.empty()) config.job_id = random_token();
  options.check();

  Environment variables;
  for (const auto& name : config.environment.names_with_prefix("MUSTER_"))
    variables.set(name, config.environment.get(name).value_or(""));
  variables.set("MUSTER_SECRET", config.secret.empty() ? random_token() : config.secret);
  for (const auto& assignment : options.variables) {
    const size_t equals = assignment.find('=');
    variables.set(assignment.substr(0, equals), equals == std::string::npos
                                                    ? config.environment.get(assignment).value_or("")
                                                    : assignment.substr(equals + 1));
  }
  auto flags = flags_for_hosts();
  for (const auto& [name, value] : {std::pair{"workers", std::to_string(options.spec.workers)},
                                    {"coordinator", config.coordinator},
                                    {"job-id", config.job_id}})
    flags.push_back(fmt::format("--{}={}", name, value));
  std::vector<std::string> ssh_words;
  for (const auto& word : split(ssh, ' ')) {
    if (!word.empty()) ssh_words.push_back(word);
  }
  if (ssh_words.empty()) raise<InvalidArgument>("--ssh is empty: expected a command such as ssh");
  if (app->get_option("--ssh")->count() > 0 && std::ranges::all_of(list, is_this_host))
    log_warning("--ssh has no effect: all hosts are this one, which needs no ssh to itself");
  auto command = options.command;
  // Where it stands here is where it stands there; what is not here may be found by the PATH that they have.
  try {
    command.front() = std::filesystem::absolute(
        find_program(command.front(), config.environment.get("PATH").value_or("/usr/bin:/bin")));
  } catch (const InvalidArgument&) {
    if (command.front().find('/') != std::string::npos) throw;
  }
  HostLauncher launcher({.hosts = list,
                         .ssh = ssh_words,
                         .flags = flags,
                         .command = command,
                         .environment = config.environment,
                         .variables = variables,
                         .tee = options.tee,
                         .grace = options.grace,
                         .join_timeout = config.join_timeout});
  if (dry_run) {
    for (const auto& text : launcher.commands()) fmt::print("{}\n", text);
    return 0;
  }
  return launcher.run();
}

}  // namespace muster::detail
