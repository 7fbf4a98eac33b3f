#pragma once

// What a task is told from outside, typed: each setting comes from its flag, else from its MUSTER_* variable,
// else from its default. config.cc holds the one table of settings; `to_string()` prints them all with where
// each came from.
//
//   CLI::App app;                       // the program's own flags
//   Config config;
//   config.add_flags(app);              // Muster's, in a group of their own in --help
//   if (auto code = parse_flags(app, argc, argv)) return *code;
//   config.read_environment(Environment::of_process());
//
// Of one thread until it is read; a value from then on.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/base/environment.h"
#include "muster/base/log.h"
#include "muster/progress.h"

namespace CLI {
class App;
}

namespace muster::detail {

class Config {
 public:
  std::string task;     ///< "worker/1" or "/job:worker/task:1"; empty: found from the launcher's variables
  std::string cluster;  ///< {"worker": ["h1:2222"]} or worker=h1:2222,h2:2222;ps=h3:2222
  std::string coordinator;  ///< "host:port"; empty: found from the launcher's variables
  std::string job_id;
  std::string secret;     ///< from MUSTER_SECRET only: a command line can be read by other users
  std::string interface;  ///< names or prefixes, "eth,ib", or "^lo,docker" for all but these
  std::chrono::milliseconds join_timeout{std::chrono::minutes(5)};
  std::chrono::milliseconds heartbeat_timeout{std::chrono::seconds(10)};
  int restart_count = 0;  ///< how often the launcher has restarted this task
  LogLevel log_level = LogLevel::kInfo;
  ProgressStyle progress = ProgressStyle::kAuto;

  // Training.
  std::string strategy = "allreduce";  ///< how gradients become new parameters: allreduce, ps-async, ... none
  std::string bucket = "auto";         ///< bytes that travel between hosts at once: 25M; auto: measured
  std::string precision = "fp32";      ///< of the forward pass: fp32, bf16 or fp16

  std::string slow;             ///< "worker/1:3x": makes a worker slower, to try out what then happens
  std::string on_nan = "stop";  ///< what a gradient that is not finite does: skip or stop

  // Parameter servers.
  std::string placement = "sliced";  ///< of variables on servers: round-robin, balanced or sliced
  std::string switches;              ///< "0:ps-sync,500:ps-async": modes from the given steps on
  int replicas_to_aggregate = 0;     ///< ps-sync: gradients averaged for a step; 0: as many as workers
  int init_tokens = 0;             ///< ps-sync: tokens for the first step; 0: one for each gradient or worker
  int max_staleness = -1;          ///< ps-async, ps-ssp: drop, or damp, what is more stale; -1: nothing
  bool staleness_damping = false;  ///< ps-async, ps-ssp: divide the learning rate by the staleness
  int staleness = 0;               ///< ps-ssp: how far a worker may be ahead of the slowest
  int sync_every = 16;             ///< ps-local: local steps between two averages
  double outer_momentum = 0;       ///< ps-local: of the averages
  bool hogwild = false;            ///< workers of the server's host read parameters in place
  std::chrono::milliseconds server_wait{std::chrono::seconds(30)};  ///< for a server that is gone

  // Collectives.
  std::string engine = "native";   ///< native, mpi or gloo
  std::string algorithm = "auto";  ///< of all operations that have it; auto: the measured table
  bool shared_memory = true;       ///< between ranks of one host
  std::string wire = "same";       ///< what float32 sums travel as between hosts: same, fp16 or bf16
  int sockets = 1;                 ///< connections for each pair of ranks on different hosts
  std::chrono::milliseconds collective_timeout{std::chrono::minutes(10)};
  std::chrono::milliseconds stall_warning{std::chrono::seconds(10)};
  std::string tls_cert;
  std::string tls_key;
  std::string tls_ca;

  /// The variables of this process, for the identity that other launchers give.
  Environment environment;

  /// Adds a flag for each setting, or for those named, to the program's own. The Config must outlive the
  /// parsing of `app`.
  void add_flags(CLI::App& app, const std::vector<std::string>& names = {});

  /// The same for all settings that the tasks of a job have in common: not for who a task is, which its
  /// launcher says.
  void add_job_flags(CLI::App& app);

  /// Fills what no flag has set. Modes to switch between are a strategy too, that of the first. Throws
  /// InvalidArgument for a malformed value, for an unknown MUSTER_* variable, and for a strategy that is not
  /// the first of the modes.
  void read_environment(Environment variables);

  /// What a job consists of, as far as settings depend on it.
  struct Tasks {
    std::vector<std::string> workers;  ///< their names: "worker/0", ...
    int servers = 0;
  };

  /// Throws InvalidArgument when a setting that was given, be it with its default, can have no effect in a
  /// job of these tasks, or when the strategy does not fit them. Names the flag or variable, and the remedy.
  void check(const Tasks& tasks) const;

  /// The settings that this program's own flags have given and that only several tasks go by: "--interface
  /// eth0".
  std::vector<std::string> without_effect_alone() const;

  /// A sentence for each setting that is not its default and has no effect while all tasks are on one host.
  std::vector<std::string> without_effect_on_one_host() const;

  /// A sentence for each setting that this program's own flags have given and that the coordinator alone, or
  /// for the most part, goes by, where a launcher has the coordinator: `muster run` was not told of them.
  std::vector<std::string> without_effect_on_the_launcher() const;

  /// The settings that were given and that only training goes by: "--precision bf16".
  std::vector<std::string> given_for_training() const;

  /// Those of them that Trainers go by and embedding tables do not: not --strategy, by which there are servers.
  std::vector<std::string> given_for_trainers() const;

  /// The settings that were given and that only collectives go by: "--engine gloo".
  std::vector<std::string> given_for_collectives() const;

  /// The settings that were given and that only tasks go by which enter the job: "--tls-cert task.pem".
  std::vector<std::string> given_for_members() const;

  /// Whether the strategy is one of parameter servers.
  bool uses_servers() const { return strategy.starts_with("ps-"); }

  /// Sets the variable of each setting that differs from its default, and removes the others: a process
  /// started with these reads the same.
  void export_to(Environment& variables) const;

  /// One setting a line: name, value, source. The secret is shown as set or not.
  std::string to_string() const;

 private:
  template <typename Wanted>
  void add_flags_of(CLI::App& app, const Wanted& wanted);
  template <typename Wanted>
  std::vector<std::string> given(const Wanted& wanted) const;
  void check_strategies() const;
  void check_staleness() const;
  void check_servers(const Tasks& tasks) const;
  void check_slow(const Tasks& tasks) const;
  void check_tls() const;
  std::vector<std::string> modes() const;

  std::map<std::string, std::string> sources_;  // setting -> "--task" or "MUSTER_TASK"
};

/// Reads --switch, "0:ps-sync,500:ps-async": each mode with the step from which on it holds, the first from
/// 0. Empty when it is malformed.
std::optional<std::vector<std::pair<int64_t, std::string>>> parse_switches(std::string_view text);

/// Reads --slow, "worker/1:3x,worker/2:1.5x": how many times slower each worker is made. Empty when it is
/// malformed.
std::optional<std::map<std::string, double>> parse_slow(std::string_view text);

}  // namespace muster::detail
