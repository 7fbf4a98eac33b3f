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

namespace muster {
namespace {

struct Setting {
  const char* name;  // --name and MUSTER_NAME
  const char* type;
  const char* help;
  std::function<bool(Config&, const std::string&)> read;  // false: the text is malformed
  std::function<std::string(const Config&)> print;
  const char* expected = "";
  bool has_flag = true;
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
        duration_setting("join-timeout", &Config::join_timeout, "how long to wait for all tasks to join"),
        duration_setting("heartbeat-timeout", &Config::heartbeat_timeout,
                         "a task silent for this long is lost"),
        {.name = "restart-count",
         .type = "N",
         .help = "how often this task has been restarted (set by the launcher)",
         .read =
             [](Config& config, const std::string& text) {
               const auto value = parse_integer(text);
               if (value) config.restart_count = static_cast<int>(*value);
               return value.has_value() && *value >= 0 && *value < 1'000'000;
             },
         .print = [](const Config& config) { return std::to_string(config.restart_count); },
         .expected = "a whole number from 0",
         .has_flag = false},
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
    };
    for (auto& setting : *made) {
      if (std::string(setting.name) == "secret") {
        setting.has_flag = false;
        setting.is_secret = true;
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

}  // namespace

void Config::add_flags(CLI::App& app, const std::vector<std::string>& names) {
  for (const auto& setting : settings()) {
    if (!setting.has_flag) continue;
    if (!names.empty() && std::find(names.begin(), names.end(), setting.name) == names.end()) continue;
    const std::string flag = std::string("--") + setting.name;
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

}  // namespace muster
