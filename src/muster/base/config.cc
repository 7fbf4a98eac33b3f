#include "muster/base/config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

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
};

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

Setting duration_setting(const char* name, std::chrono::milliseconds Config::*field, const char* help) {
  return {.name = name,
          .type = "DURATION",
          .help = help,
          .read =
              [field](Config& config, const std::string& text) {
                const auto value = parse_duration(text);
                if (value) config.*field = *value;
                return value.has_value() && value->count() > 0;
              },
          .print = [field](const Config& config) { return format_duration(config.*field); },
          .expected = "a number with ms, s, m or h, such as 10s"};
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

const std::vector<Setting>& settings() {
  static const auto* table = [] {
    auto* made = new std::vector<Setting>{
        text_setting("task", &Config::task, "which task this is: /job:worker/task:1"),
        text_setting("cluster", &Config::cluster,
                     "all tasks: worker=h1:2222,h2:2222;ps=h3:2222, or the same as JSON"),
        text_setting("coordinator", &Config::coordinator, "host:port where worker 0 or the launcher listens"),
        text_setting("job-id", &Config::job_id, "the job that this task belongs to"),
        text_setting("secret", &Config::secret, "what all tasks of the job must know"),
        text_setting("interface", &Config::interface,
                     "network interfaces by name or prefix (eth,ib), or all but some (^lo,docker)"),
        duration_setting("join-timeout", &Config::join_timeout,
                         "how long to wait for all tasks to enter the job"),
        duration_setting("heartbeat-timeout", &Config::heartbeat_timeout,
                         "a task silent for this long has failed"),
        number_setting("restart-count", &Config::restart_count, 0, 999'999,
                       "how often this task has been restarted (set by the launcher)"),
        choice_setting("log-level", &Config::log_level, "debug, info, warning, error or off",
                       "debug, info, warning, error or off",
                       std::array<std::pair<const char*, LogLevel>, 5>{{{"debug", LogLevel::kDebug},
                                                                        {"info", LogLevel::kInfo},
                                                                        {"warning", LogLevel::kWarning},
                                                                        {"error", LogLevel::kError},
                                                                        {"off", LogLevel::kOff}}}),
        choice_setting("progress", &Config::progress,
                       "auto, live (a line that rewrites itself), plain or off", "auto, live, plain or off",
                       std::array<std::pair<const char*, ProgressStyle>, 4>{{{"auto", ProgressStyle::kAuto},
                                                                             {"live", ProgressStyle::kLive},
                                                                             {"plain", ProgressStyle::kPlain},
                                                                             {"off", ProgressStyle::kOff}}}),
        word_setting("strategy", &Config::strategy,
                     "how workers train together: allreduce, or parameter servers with ps-async, ps-sync, "
                     "ps-ssp or ps-local",
                     {"allreduce", "ps-async", "ps-sync", "ps-ssp", "ps-local"}),
        bytes_setting("bucket", &Config::bucket,
                      "gradients that travel between hosts at once: 4M; auto measures"),
        word_setting("precision", &Config::precision, "of the forward pass: fp32, bf16 or fp16",
                     {"fp32", "bf16", "fp16"}),
        text_setting("slow", &Config::slow,
                     "make a worker slower, to see what happens: worker/1:3x, or several with commas"),
        word_setting("placement", &Config::placement,
                     "of variables on servers: round-robin, balanced or sliced (equal bytes)",
                     {"round-robin", "balanced", "sliced"}),
        text_setting("switch", &Config::switches,
                     "change the mode of parameter servers at steps: 0:ps-sync,500:ps-async"),
        number_setting("replicas-to-aggregate", &Config::replicas_to_aggregate, 0, 100'000,
                       "ps-sync: gradients averaged for a step; fewer than workers gives backup workers; 0: "
                       "as many as workers"),
        number_setting("init-tokens", &Config::init_tokens, 0, 1'000'000,
                       "ps-sync: tokens for the first step; 0: as many as for the later ones"),
        number_setting("max-staleness", &Config::max_staleness, -1, 1'000'000,
                       "ps-async: drop gradients more stale than this, or damp them; -1: never"),
        switch_setting("staleness-damping", &Config::staleness_damping,
                       "ps-async: divide the learning rate by the staleness, instead of dropping"),
        number_setting("staleness", &Config::staleness, 0, 1'000'000'000,
                       "ps-ssp: how many steps a worker may be ahead of the slowest"),
        number_setting("sync-every", &Config::sync_every, 1, 1'000'000,
                       "ps-local: steps that a worker takes alone between two averages"),
        real_setting("outer-momentum", &Config::outer_momentum, 0, 1, "ps-local: momentum of the averages"),
        switch_setting("hogwild", &Config::hogwild,
                       "workers on the server's host read parameters in place, also while they change"),
        word_setting("on-nan", &Config::on_nan,
                     "what becomes of a step with a gradient that is infinite or not a number: skip it, or "
                     "stop the job",
                     {"skip", "stop"}),
        duration_setting("server-wait", &Config::server_wait,
                         "how long workers wait for a server that is gone"),
        word_setting("engine", &Config::engine, "what carries collectives: native, mpi or gloo",
                     {"native", "mpi", "gloo"}),
        word_setting(
            "algorithm", &Config::algorithm,
            "of collectives, where it can be had: ring, halving-doubling, doubling, exchange, direct, "
            "hierarchical, chain, tree; auto chooses by size",
            {"auto", "ring", "halving-doubling", "doubling", "exchange", "direct", "hierarchical", "chain",
             "tree"}),
        choice_setting("shared-memory", &Config::shared_memory, "between ranks of one host: on or off",
                       "on or off",
                       std::array<std::pair<const char*, bool>, 2>{{{"on", true}, {"off", false}}}),
        word_setting("wire", &Config::wire, "what float32 sums travel as between hosts: same, fp16 or bf16",
                     {"same", "fp16", "bf16"}),
        number_setting("sockets", &Config::sockets, 1, 64,
                       "connections for each pair of ranks on different hosts"),
        duration_setting("collective-timeout", &Config::collective_timeout,
                         "how long a wait for other tasks may last before the job fails"),
        duration_setting("stall-warning", &Config::stall_warning,
                         "say who holds up whom when a wait takes longer than this"),
        text_setting("tls-cert", &Config::tls_cert,
                     "this task's certificate (PEM): encrypts links between hosts"),
        text_setting("tls-key", &Config::tls_key, "its key (PEM)"),
        text_setting("tls-ca", &Config::tls_ca, "who signed the certificates of the job (PEM)"),
    };
    for (auto& setting : *made) {
      const std::string_view name = setting.name;
      setting.is_secret = name == "secret";
      setting.is_identity = name == "task" || name == "cluster" || name == "restart-count";
      setting.has_flag = name != "secret" && name != "restart-count";
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

}  // namespace

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
  for (const auto& setting : settings()) {
    if (!setting.has_flag || !wanted(setting)) continue;
    const std::string flag = std::string("--") + setting.name;
    if (setting.is_switch) {
      app.add_flag_callback(
             flag,
             [this, &setting, flag] {
               setting.read(*this, "on");
               sources_[setting.name] = flag;
             },
             fmt::format("{} ({})", setting.help, variable_of(setting)))
          ->group("Muster");
      continue;
    }
    app.add_option_function<std::string>(
           flag,
           [this, &setting, flag](const std::string& text) {
             if (!setting.read(*this, text)) {
               throw CLI::ValidationError(flag, fmt::format("{} is not {}", text, setting.expected));
             }
             sources_[setting.name] = flag;
           },
           fmt::format("{} ({})", setting.help, variable_of(setting)))
        ->type_name(setting.type)
        ->group("Muster");
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
      raise<InvalidArgument>("the environment variable {} is not one that Muster knows{}", name,
                             suggestion(name, known));
    }
  }
}

void Config::export_to(Environment& variables) const {
  const Config defaults;
  for (const auto& setting : settings()) {
    const std::string text = setting.print(*this);
    if (text == setting.print(defaults)) {
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
