#include "muster/base/config.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/flags.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

// Which strategies a setting applies to: a sum of these.
struct Applies {
  static constexpr unsigned kAllReduce = 1;
  static constexpr unsigned kAsync = 2;
  static constexpr unsigned kSync = 4;
  static constexpr unsigned kSsp = 8;
  static constexpr unsigned kLocal = 16;
  static constexpr unsigned kNone = 32;
  static constexpr unsigned kServers = kAsync | kSync | kSsp | kLocal;
  static constexpr unsigned kTraining = kAllReduce | kServers;
  static constexpr unsigned kAlways = kTraining | kNone;
};

constexpr std::array<std::pair<const char*, unsigned>, 6> kStrategies = {{{"allreduce", Applies::kAllReduce},
                                                                          {"ps-async", Applies::kAsync},
                                                                          {"ps-sync", Applies::kSync},
                                                                          {"ps-ssp", Applies::kSsp},
                                                                          {"ps-local", Applies::kLocal},
                                                                          {"none", Applies::kNone}}};

std::vector<std::string> strategies_of(unsigned applies) {
  std::vector<std::string> words;
  for (const auto& [word, bit] : kStrategies) {
    if ((applies & bit) != 0) words.emplace_back(word);
  }
  return words;
}

std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  return text;
}

struct Setting {
  const char* name;  // --name and MUSTER_NAME
  const char* type;
  const char* help;
  std::function<bool(Config&, const std::string&)> read;  // false: the text is malformed
  std::function<std::string(const Config&)> print;
  std::string expected;
  bool has_flag = true;
  bool is_switch = false;    // a flag without a value
  bool is_identity = false;  // who a task is: its launcher says it
  bool is_secret = false;
  unsigned applies = Applies::kAlways;
  bool between_hosts = false;  // it has no effect on one host
  bool collectives = false;    // only they go by it
  bool members = false;        // only tasks that enter the job go by it
  bool between_tasks = false;  // it has no effect on a task alone, as these three
  const char* group = "";      // of --help
};

Setting only_for(unsigned applies, Setting setting) {
  setting.applies = applies;
  return setting;
}

Setting only_between_hosts(Setting setting) {
  setting.between_hosts = true;
  return setting;
}

Setting only_for_collectives(Setting setting) {
  setting.collectives = true;
  return setting;
}

Setting only_for_members(Setting setting) {
  setting.members = true;
  return setting;
}

Setting only_between_tasks(Setting setting) {
  setting.between_tasks = true;
  return setting;
}

// Text in a form of its own, which `is_good` knows.
template <typename IsGood>
Setting form_setting(const char* name, std::string Config::*field, const char* help, const char* expected,
                     const IsGood& is_good) {
  return {.name = name,
          .type = "TEXT",
          .help = help,
          .read =
              [field, is_good](Config& config, const std::string& text) {
                config.*field = text;
                return is_good(text);
              },
          .print = [field](const Config& config) { return config.*field; },
          .expected = expected};
}

Setting text_setting(const char* name, std::string Config::*field, const char* help) {
  return {.name = name,
          .type = "TEXT",
          .help = help,
          .read =
              [field](Config& config, const std::string& text) {
                config.*field = text;
                return true;
              },
          .print = [field](const Config& config) { return config.*field; }};
}

Setting duration_setting(const char* name, std::chrono::milliseconds Config::*field, const char* help,
                         std::chrono::milliseconds least = std::chrono::milliseconds(1)) {
  return {.name = name,
          .type = "DURATION",
          .help = help,
          .read =
              [field, least](Config& config, const std::string& text) {
                const auto value = parse_duration(text);
                if (value) config.*field = *value;
                return value.has_value() && *value >= least;
              },
          .print = [field](const Config& config) { return format_duration(config.*field); },
          .expected = fmt::format("a time of at least {}, a number with ms, s, m or h, such as 10s",
                                  format_duration(least))};
}

template <typename Enum, size_t kCount>
Setting choice_setting(const char* name, Enum Config::*field, const char* help, const char* expected,
                       std::array<std::pair<const char*, Enum>, kCount> choices) {
  return {.name = name,
          .type = "CHOICE",
          .help = help,
          .read =
              [field, choices](Config& config, const std::string& text) {
                for (const auto& [word, value] : choices) {
                  if (text == word) {
                    config.*field = value;
                    return true;
                  }
                }
                return false;
              },
          .print =
              [field, choices](const Config& config) {
                for (const auto& [word, value] : choices) {
                  if (config.*field == value) return std::string(word);
                }
                return std::string("?");
              },
          .expected = expected};
}

Setting word_setting(const char* name, std::string Config::*field, const char* help,
                     const std::vector<std::string>& words) {
  return {.name = name,
          .type = "CHOICE",
          .help = help,
          .read =
              [field, words](Config& config, const std::string& text) {
                config.*field = text;
                return std::find(words.begin(), words.end(), text) != words.end();
              },
          .print = [field](const Config& config) { return config.*field; },
          .expected = fmt::format("one of {}", fmt::join(words, ", "))};
}

Setting bytes_setting(const char* name, std::string Config::*field, const char* help) {
  return {.name = name,
          .type = "BYTES",
          .help = help,
          .read =
              [field](Config& config, const std::string& text) {
                config.*field = text;
                return text == "auto" || parse_bytes(text).value_or(0) > 0;
              },
          .print = [field](const Config& config) { return config.*field; },
          .expected = "auto, or bytes such as 512K or 25M"};
}

Setting number_setting(const char* name, int Config::*field, int least, int most, const char* help) {
  return {.name = name,
          .type = "N",
          .help = help,
          .read =
              [=](Config& config, const std::string& text) {
                const auto value = parse_integer(text);
                if (value) config.*field = static_cast<int>(*value);
                return value.has_value() && *value >= least && *value <= most;
              },
          .print = [field](const Config& config) { return std::to_string(config.*field); },
          .expected = fmt::format("a whole number from {} to {}", least, most)};
}

Setting real_setting(const char* name, double Config::*field, double least, double below, const char* help) {
  return {.name = name,
          .type = "X",
          .help = help,
          .read =
              [=](Config& config, const std::string& text) {
                const auto value = parse_real(text);
                if (value) config.*field = *value;
                return value.has_value() && *value >= least && *value < below;
              },
          .print = [field](const Config& config) { return fmt::format("{}", config.*field); },
          .expected = fmt::format("a number from {} to below {}", least, below)};
}

Setting switch_setting(const char* name, bool Config::*field, const char* help) {
  return {.name = name,
          .type = "",
          .help = help,
          .read =
              [field](Config& config, const std::string& text) {
                config.*field = text == "on";
                return text == "on" || text == "off";
              },
          .print = [field](const Config& config) { return std::string(config.*field ? "on" : "off"); },
          .expected = "on or off",
          .is_switch = true};
}

// Each group of --help, and its settings. A setting that applies to some strategies only says so here.
std::vector<std::pair<const char*, std::vector<Setting>>> setting_groups() {
  return {
      {"Muster, the job",
       {
           text_setting("task", &Config::task, "which task this is: worker/1"),
           text_setting("cluster", &Config::cluster,
                        "all tasks: worker=h1:2222,h2:2222;ps=h3:2222, or the same as JSON"),
           form_setting("coordinator", &Config::coordinator,
                        "host:port where worker 0 or the launcher listens; for muster run the host is enough",
                        "a host, or host:port",
                        [](const std::string& text) {
                          if (text.find_first_of(" \t\n/@,;\"'") != std::string::npos) return false;
                          const bool may_be_ipv6 =
                              !text.starts_with('[') && std::ranges::count(text, ':') > 1;
                          in6_addr address{};
                          const std::string host = text.substr(0, text.find('%'));  // without a zone
                          return !may_be_ipv6 || inet_pton(AF_INET6, host.c_str(), &address) == 1;
                        }),
           only_between_tasks(text_setting("job-id", &Config::job_id, "the job that this task belongs to")),
           text_setting("secret", &Config::secret, "what all tasks of the job must know"),
           only_between_tasks(
               text_setting("interface", &Config::interface,
                            "network interfaces by name or prefix (eth,ib), or all but some (^lo,docker)")),
           only_for_members(duration_setting("join-timeout", &Config::join_timeout,
                                             "how long to wait for all tasks to enter the job")),
           only_for_members(duration_setting("heartbeat-timeout", &Config::heartbeat_timeout,
                                             "a task silent for this long has failed",
                                             std::chrono::milliseconds(100))),
           number_setting("restart-count", &Config::restart_count, 0, 999'999,
                          "how often this task has been restarted (set by the launcher)"),
           choice_setting("log-level", &Config::log_level, "debug, info, warning, error or off",
                          "debug, info, warning, error or off",
                          std::array<std::pair<const char*, LogLevel>, 5>{{{"debug", LogLevel::kDebug},
                                                                           {"info", LogLevel::kInfo},
                                                                           {"warning", LogLevel::kWarning},
                                                                           {"error", LogLevel::kError},
                                                                           {"off", LogLevel::kOff}}}),
           choice_setting(
               "progress", &Config::progress, "auto, live (a line that rewrites itself), plain or off",
               "auto, live, plain or off",
               std::array<std::pair<const char*, ProgressStyle>, 4>{{{"auto", ProgressStyle::kAuto},
                                                                     {"live", ProgressStyle::kLive},
                                                                     {"plain", ProgressStyle::kPlain},
                                                                     {"off", ProgressStyle::kOff}}}),
       }},
      {"Muster, training",
       {
           word_setting(
               "strategy", &Config::strategy,
               "how workers train together: allreduce; with parameter servers ps-async, ps-sync, "
               "ps-ssp or ps-local; or none, in the program's own way, where servers run the program "
               "as workers do",
               strategies_of(Applies::kAlways)),
           only_for(Applies::kAllReduce,
                    only_between_hosts(
                        bytes_setting("bucket", &Config::bucket,
                                      "gradients that travel between hosts at once: 4M; auto measures"))),
           only_for(Applies::kTraining,
                    word_setting("precision", &Config::precision, "of the forward pass: fp32, bf16 or fp16",
                                 {"fp32", "bf16", "fp16"})),
           only_for(
               Applies::kTraining,
               form_setting("slow", &Config::slow,
                            "make a worker slower, to see what happens: worker/1:3x, or several with commas",
                            "like worker/1:3x",
                            [](const std::string& text) { return parse_slow(text).has_value(); })),
           only_for(Applies::kTraining,
                    word_setting("on-nan", &Config::on_nan,
                                 "what becomes of a step with a gradient that is infinite or not a number: "
                                 "skip it, or stop the job",
                                 {"skip", "stop"})),
       }},
      {"Muster, parameter servers",
       {
           only_for(Applies::kServers,
                    word_setting("placement", &Config::placement,
                                 "of variables on servers: round-robin, balanced or sliced (equal bytes)",
                                 {"round-robin", "balanced", "sliced"})),
           only_for(
               Applies::kServers,
               form_setting("switch", &Config::switches,
                            "change the mode at steps: 0:ps-sync,500:ps-async; the first is the strategy",
                            "like 0:ps-sync,500:ps-async: modes of parameter servers with the steps from "
                            "which on they hold, which begin at 0 and grow",
                            [](const std::string& text) { return parse_switches(text).has_value(); })),
           only_for(
               Applies::kSync,
               number_setting("replicas-to-aggregate", &Config::replicas_to_aggregate, 0, 100'000,
                              "gradients averaged for a step; fewer than workers gives backup workers; 0: as "
                              "many as workers")),
           only_for(Applies::kSync,
                    number_setting("init-tokens", &Config::init_tokens, 0, 1'000'000,
                                   "tokens for the first step; 0: as many as for the later ones")),
           only_for(Applies::kAsync | Applies::kSsp,
                    number_setting("max-staleness", &Config::max_staleness, -1, 1'000'000,
                                   "drop gradients more stale than this, or damp them; -1: never")),
           only_for(Applies::kAsync | Applies::kSsp,
                    switch_setting("staleness-damping", &Config::staleness_damping,
                                   "divide the learning rate by the staleness, instead of dropping")),
           only_for(Applies::kSsp, number_setting("staleness", &Config::staleness, 0, 1'000'000'000,
                                                  "how many steps a worker may be ahead of the slowest")),
           only_for(Applies::kLocal, number_setting("sync-every", &Config::sync_every, 1, 1'000'000,
                                                    "steps that a worker takes alone between two averages")),
           only_for(Applies::kLocal, real_setting("outer-momentum", &Config::outer_momentum, 0, 1,
                                                  "momentum of the averages")),
           only_for(Applies::kAsync | Applies::kSsp,
                    switch_setting(
                        "hogwild", &Config::hogwild,
                        "workers on the server's host read parameters in place, also while they change")),
           only_for(Applies::kServers, duration_setting("server-wait", &Config::server_wait,
                                                        "how long workers wait for a server that is gone")),
       }},
      {"Muster, between tasks",
       {
           only_for_collectives(word_setting("engine", &Config::engine,
                                             "what carries collectives: native, mpi or gloo",
                                             {"native", "mpi", "gloo"})),
           only_for_collectives(word_setting(
               "algorithm", &Config::algorithm,
               "of collectives, where it can be had: ring, halving-doubling, doubling, exchange, direct, "
               "hierarchical, chain, tree; auto chooses by size",
               {"auto", "ring", "halving-doubling", "doubling", "exchange", "direct", "hierarchical", "chain",
                "tree"})),
           only_between_tasks(choice_setting(
               "shared-memory", &Config::shared_memory, "between ranks of one host: on or off", "on or off",
               std::array<std::pair<const char*, bool>, 2>{{{"on", true}, {"off", false}}})),
           only_for_members(only_between_hosts(word_setting(
               "wire", &Config::wire, "what float32 sums travel as between hosts: same, fp16 or bf16",
               {"same", "fp16", "bf16"}))),
           only_for_members(only_between_hosts(number_setting(
               "sockets", &Config::sockets, 1, 64, "connections for each pair of ranks on different hosts"))),
           only_between_tasks(
               duration_setting("collective-timeout", &Config::collective_timeout,
                                "how long a wait for other tasks may last before the job fails")),
           only_between_tasks(duration_setting("stall-warning", &Config::stall_warning,
                                               "say who holds up whom when a wait takes longer than this")),
           only_for_members(text_setting("tls-cert", &Config::tls_cert,
                                         "this task's certificate (PEM): encrypts links between hosts")),
           only_for_members(text_setting("tls-key", &Config::tls_key, "its key (PEM)")),
           only_for_members(
               text_setting("tls-ca", &Config::tls_ca, "who signed the certificates of the job (PEM)")),
       }},
  };
}

const std::vector<Setting>& settings() {
  static const auto* table = [] {
    auto* made = new std::vector<Setting>;
    for (auto& [group, members] : setting_groups()) {
      for (auto& setting : members) {
        const std::string_view name = setting.name;
        setting.group = group;
        setting.is_secret = name == "secret";
        setting.is_identity = name == "task" || name == "cluster" || name == "restart-count";
        setting.has_flag = name != "secret" && name != "restart-count";
        made->push_back(std::move(setting));
      }
    }
    return made;
  }();
  return *table;
}

std::string variable_of(const Setting& setting) {
  std::string name = "MUSTER_";
  for (const char* c = setting.name; *c != '\0'; ++c) {
    name += *c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(*c)));
  }
  return name;
}

// "--workers" for MUSTER_WORKERS.
std::string flag_of(const std::string& variable) {
  std::string flag = "--";
  for (const char c : variable.substr(std::string_view("MUSTER_").size())) {
    flag += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return flag;
}

// What the flag does, for whom, and its variable.
std::string help_of(const Setting& setting) {
  const bool some_servers = (setting.applies & Applies::kServers) != Applies::kServers;
  const bool needs_saying = setting.applies != Applies::kAlways && some_servers;
  return fmt::format("{}{}{} ({})", needs_saying ? listed(strategies_of(setting.applies)) : "",
                     needs_saying ? ": " : "", setting.help, variable_of(setting));
}

}  // namespace

std::optional<std::vector<std::pair<int64_t, std::string>>> parse_switches(std::string_view text) {
  const auto known = strategies_of(Applies::kServers);
  std::vector<std::pair<int64_t, std::string>> modes;
  for (const auto& item : split(text, ',')) {
    const size_t colon = item.find(':');
    if (colon == std::string::npos) return std::nullopt;
    const auto from = parse_integer(std::string_view(item).substr(0, colon));
    const std::string mode = item.substr(colon + 1);
    const bool grows = from && (modes.empty() ? *from == 0 : *from > modes.back().first);
    if (!grows || std::find(known.begin(), known.end(), mode) == known.end()) return std::nullopt;
    modes.emplace_back(*from, mode);
  }
  return modes;
}

std::optional<std::map<std::string, double>> parse_slow(std::string_view text) {
  std::map<std::string, double> factors;
  for (const auto& entry : split(text, ',')) {
    const size_t colon = entry.rfind(':');
    if (colon == std::string::npos || !entry.ends_with('x')) return std::nullopt;
    const auto factor = parse_real(std::string_view(entry).substr(colon + 1, entry.size() - colon - 2));
    if (!factor || *factor < 1) return std::nullopt;
    factors[entry.substr(0, colon)] = *factor;
  }
  return factors;
}

void Config::add_flags(CLI::App& app, const std::vector<std::string>& names) {
  add_flags_of(app, [&](const Setting& setting) {
    return names.empty() || std::find(names.begin(), names.end(), setting.name) != names.end();
  });
}

void Config::add_job_flags(CLI::App& app) {
  add_flags_of(app, [](const Setting& setting) { return !setting.is_identity; });
}

template <typename Wanted>
void Config::add_flags_of(CLI::App& app, const Wanted& wanted) {
  const Config defaults;
  for (const auto& setting : settings()) {
    if (!setting.has_flag || !wanted(setting)) continue;
    const std::string flag = std::string("--") + setting.name;
    if (setting.is_switch) {
      app.add_flag_function(
             flag,
             [this, &setting, flag](int64_t on) {
               setting.read(*this, on > 0 ? "on" : "off");
               sources_[setting.name] = flag;
             },
             help_of(setting))
          ->group(setting.group);
      continue;
    }
    app.add_option_function<std::string>(
           flag,
           [this, &setting, flag](const std::string& text) {
             if (text.empty()) throw CLI::ValidationError(flag, "the value is empty");
             if (!setting.read(*this, text)) {
               throw CLI::ValidationError(flag, fmt::format("{} is not {}", text, setting.expected));
             }
             sources_[setting.name] = flag;
           },
           help_of(setting))
        ->type_name(setting.type)
        ->default_str(setting.print(defaults))
        ->group(setting.group);
  }
}

void Config::read_environment(Environment variables) {
  environment = std::move(variables);
  std::vector<std::string> known;
  for (const auto& setting : settings()) {
    known.push_back(variable_of(setting));
    const auto text = environment.get(known.back());
    if (!text || sources_.contains(setting.name)) continue;
    if (!setting.read(*this, *text)) {
      raise<InvalidArgument>("the environment variable {}={} is not {}", known.back(), *text,
                             setting.expected);
    }
    sources_[setting.name] = known.back();
  }
  for (const auto& name : environment.names_with_prefix("MUSTER_")) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      const std::string flag = flag_of(name);
      raise<InvalidArgument>("the environment variable {} is not one that Muster knows{}", name,
                             is_flag_of_launcher(flag)
                                 ? fmt::format("; `muster run` has the flag {}, and no variable for it", flag)
                                 : suggestion(name, known));
    }
  }
  if (switches.empty()) return;
  const std::string first = modes().front();
  const auto& source = sources_["switch"];
  if (sources_.emplace("strategy", source).second) strategy = first;
  if (strategy != first) {
    raise<InvalidArgument>("{} begins with {}, and {} is {}: leave the strategy out, or make it {}", source,
                           first, sources_["strategy"], strategy, first);
  }
}

std::vector<std::string> Config::modes() const {
  const auto parsed = switches.empty() ? std::nullopt : parse_switches(switches);
  if (!parsed) return {strategy};
  std::vector<std::string> result;
  for (const auto& [from, mode] : *parsed) {
    if (std::ranges::count(result, mode) == 0) result.push_back(mode);
  }
  return result;
}

void Config::check(const Tasks& tasks) const {
  check_strategies();
  check_staleness();
  check_servers(tasks);
  check_slow(tasks);
  check_tls();
}

void Config::check_strategies() const {
  const auto used = modes();
  for (const auto& setting : settings()) {
    const auto source = sources_.find(setting.name);
    if (source == sources_.end()) continue;
    const auto wanted = strategies_of(setting.applies);
    if (std::find_first_of(used.begin(), used.end(), wanted.begin(), wanted.end()) != used.end()) continue;
    raise<InvalidArgument>("{} applies to {}, not to {}; {} or {}", source->second, listed(wanted),
                           listed(used),
                           !switches.empty()    ? "let one of the modes of --switch be such"
                           : wanted.size() == 1 ? fmt::format("add --strategy {}", wanted.front())
                                                : "choose one of these by --strategy",
                           source->second.starts_with("--") ? "leave it out" : "unset it");
  }
}

// With a staleness of 0, ps-ssp is ps-sync: no gradient is ever stale.
void Config::check_staleness() const {
  const auto used = modes();
  if (staleness > 0 || std::ranges::count(used, "ps-async") > 0 || std::ranges::count(used, "ps-ssp") == 0)
    return;
  for (const auto& [name, is_on] :
       {std::pair("max-staleness", max_staleness >= 0), std::pair("staleness-damping", staleness_damping)}) {
    const auto source = sources_.find(name);
    if (source == sources_.end() || !is_on) continue;
    raise<InvalidArgument>(
        "{} has no effect with ps-ssp and a staleness of 0, where no gradient is stale: add --staleness 2, "
        "or "
        "{}",
        source->second, source->second.starts_with("--") ? "leave it out" : "unset it");
  }
}

void Config::check_servers(const Tasks& tasks) const {
  if (tasks.servers > 0 && strategy == "allreduce") {
    raise<InvalidArgument>(
        "--ps {} has no effect with --strategy allreduce, which uses no parameter servers: add --strategy "
        "ps-sync, ps-async, ps-ssp or ps-local; or --strategy none for a program with servers of its own; or "
        "leave --ps out",
        tasks.servers);
  }
  if (const auto source = sources_.find("placement"); source != sources_.end() && tasks.servers == 1) {
    raise<InvalidArgument>(
        "{} {} has no effect with one parameter server, which has all variables: start several, as by --ps "
        "2, or {}",
        source->second, placement, source->second.starts_with("--") ? "leave it out" : "unset it");
  }
  if (tasks.servers == 0 && uses_servers()) {
    raise<InvalidArgument>(
        "--strategy {} needs a parameter server, and the job has none: start the program by `muster run "
        "--strategy {}`, which starts one, or as many as --ps says",
        strategy, strategy);
  }
}

void Config::check_slow(const Tasks& tasks) const {
  if (slow.empty()) return;
  const auto factors = parse_slow(slow);
  if (!factors) raise<InvalidArgument>("--slow {} is not like worker/1:3x", slow);
  for (const auto& [name, factor] : *factors) {
    if (std::find(tasks.workers.begin(), tasks.workers.end(), name) != tasks.workers.end()) continue;
    raise<InvalidArgument>("--slow {}: the job has no {}, only {}", slow, name,
                           tasks.workers.size() < 2
                               ? listed(tasks.workers)
                               : fmt::format("{} to {}", tasks.workers.front(), tasks.workers.back()));
  }
}

void Config::check_tls() const {
  std::vector<std::string> given;
  std::vector<std::string> missing;
  for (const auto& [flag, text] :
       {std::pair{"--tls-cert", &tls_cert}, {"--tls-key", &tls_key}, {"--tls-ca", &tls_ca}})
    (text->empty() ? missing : given).emplace_back(flag);
  if (!given.empty() && missing.empty() && engine != "native")
    raise<InvalidArgument>(
        "--engine {} has connections of its own, which --tls-cert does not encrypt: use --engine "
        "native, or leave {} out",
        engine, listed(given));
  if (given.empty() || missing.empty()) return;
  raise<InvalidArgument>("TLS needs --tls-cert, --tls-key and --tls-ca together: add {}, or leave {} out",
                         listed(missing), listed(given));
}

std::vector<std::string> Config::without_effect_on_the_launcher() const {
  std::vector<std::string> sentences;
  const auto launcher = sources_.find("coordinator");
  if (launcher == sources_.end() || launcher->second.starts_with("--")) return sentences;
  for (const char* name : {"stall-warning", "collective-timeout", "heartbeat-timeout"}) {
    const auto source = sources_.find(name);
    if (source == sources_.end() || !source->second.starts_with("--")) continue;
    sentences.push_back(fmt::format(
        "{} was given to the program, and the launcher, which watches all waits, does not know of it: "
        "give it to `muster run`, before --",
        source->second));
  }
  return sentences;
}

template <typename Wanted>
std::vector<std::string> Config::given(const Wanted& wanted) const {
  std::vector<std::string> given;
  for (const auto& setting : settings()) {
    if (!wanted(setting) || !sources_.contains(setting.name)) continue;
    given.push_back(setting.is_switch ? fmt::format("--{}", setting.name)
                                      : fmt::format("--{} {}", setting.name, setting.print(*this)));
  }
  return given;
}

std::vector<std::string> Config::given_for_training() const {
  return given([this](const Setting& setting) {
    return setting.applies != Applies::kAlways ||
           (std::string_view(setting.name) == "strategy" && strategy != "none");
  });
}

std::vector<std::string> Config::given_for_trainers() const {
  return given([](const Setting& setting) {
    return setting.applies != Applies::kAlways && std::string_view(setting.name) != "on-nan";
  });
}

std::vector<std::string> Config::given_for_collectives() const {
  return given([](const Setting& setting) { return setting.collectives; });
}

std::vector<std::string> Config::given_for_members() const {
  return given([](const Setting& setting) { return setting.members; });
}

std::vector<std::string> Config::without_effect_alone() const {
  return given([this](const Setting& setting) {
    const auto source = sources_.find(setting.name);
    return source != sources_.end() && source->second.starts_with("--") &&
           (setting.between_hosts || setting.collectives || setting.members || setting.between_tasks);
  });
}

std::vector<std::string> Config::without_effect_on_one_host() const {
  std::vector<std::string> sentences;
  if (!shared_memory) return sentences;
  const Config defaults;
  for (const auto& setting : settings()) {
    const std::string text = setting.print(*this);
    if (!setting.between_hosts || text == setting.print(defaults)) continue;
    sentences.push_back(fmt::format(
        "--{} {} has no effect: all tasks are on one host, where they share memory", setting.name, text));
  }
  return sentences;
}

void Config::export_to(Environment& variables) const {
  const Config defaults;
  for (const auto& setting : settings()) {
    const std::string text = setting.print(*this);
    // What was given with its default counts as given, to the tasks too.
    const bool is_given = sources_.contains(setting.name) && !text.empty() && !setting.is_switch;
    if (text == setting.print(defaults) && !is_given) {
      variables.unset(variable_of(setting));
    } else {
      variables.set(variable_of(setting), text);
    }
  }
}

std::string Config::to_string() const {
  std::string result;
  for (const auto& setting : settings()) {
    const auto source = sources_.find(setting.name);
    const std::string text = setting.print(*this);
    result +=
        fmt::format("{:<18} {:<32} {}\n", setting.name, setting.is_secret && !text.empty() ? "(set)" : text,
                    source == sources_.end() ? "default" : source->second);
  }
  return result;
}

}  // namespace muster::detail
