#include "muster/manual.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/base/config.h"
#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

// A flag as a reader sees it.
struct Flag {
  std::string name;   // --workers
  std::string value;  // "INT", "DURATION"; empty: it takes none
  std::string fallback;
  std::string text;
  std::string group;
};

// Without --help and what is not for people.
std::vector<Flag> flags_of(const CLI::App& command) {
  std::vector<Flag> flags;
  for (const CLI::Option* option : command.get_options({})) {
    if (option->get_lnames().empty() || option->get_group().empty()) continue;
    const std::string& name = option->get_lnames().front();
    if (name == "help" || name == "version") continue;
    std::string value;
    if (option->get_items_expected_max() > 0) value = option->get_type_name();
    value.resize(std::min(value.find(':'), value.size()));  // what a validator adds
    flags.push_back({.name = "--" + name,
                     .value = value,
                     .fallback = option->get_default_str(),
                     .text = option->get_description(),
                     .group = option->get_group() == "Options" ? "" : option->get_group()});
  }
  return flags;
}

std::vector<std::string> groups_of(const std::vector<Flag>& flags) {
  std::vector<std::string> groups;
  for (const auto& flag : flags) {
    if (std::ranges::find(groups, flag.group) == groups.end()) groups.push_back(flag.group);
  }
  return groups;
}

std::vector<const CLI::App*> commands_of(const CLI::App& muster) {
  return muster.get_subcommands([](const CLI::App*) { return true; });
}

// In a page of man(1) a line must not begin with a dot or an apostrophe, and a hyphen that is typed is \-.
std::string roff(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool begins_line = result.empty() || result.back() == '\n';
    if (begins_line && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
  }
  return result;
}

std::string capitals(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

void add_flags(std::string& page, const std::vector<Flag>& flags) {
  for (const auto& group : groups_of(flags)) {
    page += fmt::format(".SH {}\n", group.empty() ? "OPTIONS" : roff(capitals(group)));
    for (const auto& flag : flags) {
      if (flag.group != group) continue;
      page += fmt::format(".TP\n\\fB{}\\fR", roff(flag.name));
      if (!flag.value.empty()) page += fmt::format(" \\fI{}\\fR", roff(flag.value));
      page += fmt::format("\n{}.{}\n", roff(flag.text),
                          flag.fallback.empty() ? "" : fmt::format(" Default: {}.", roff(flag.fallback)));
    }
  }
}

// A vertical bar would end a cell.
std::string cell(const std::string& text) {
  return CLI::detail::find_and_replace(text, "|", "\\|");
}

void add_tables(std::string& text, const std::vector<Flag>& flags) {
  for (const auto& group : groups_of(flags)) {
    if (!group.empty()) text += fmt::format("\n### {}\n", group);
    text += "\n| flag | default | meaning |\n|---|---|---|\n";
    for (const auto& flag : flags) {
      if (flag.group != group) continue;
      text += fmt::format("| `{}{}{}` | {} | {} |\n", flag.name, flag.value.empty() ? "" : " ", flag.value,
                          flag.fallback.empty() ? "" : fmt::format("`{}`", flag.fallback), cell(flag.text));
    }
  }
}

std::string words_of(const CLI::App& command) {
  std::string words;
  for (const auto& flag : flags_of(command)) words += " " + flag.name;
  return words + " --help";
}

std::string bash_completion(const CLI::App& muster) {
  std::string names;
  std::string cases;
  for (const CLI::App* command : commands_of(muster)) {
    names += (names.empty() ? "" : " ") + command->get_name();
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command->get_name(), words_of(*command).substr(1));
  }
  return fmt::format(
      "# Completion of muster for bash: muster completion bash > "
      "~/.local/share/bash-completion/completions/muster\n"
      "_muster() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} words=\"{} --help --version\" i\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    if [ \"${{COMP_WORDS[i]}}\" = -- ]; then  # the program and its arguments\n"
      "      if ((i + 1 == COMP_CWORD)); then COMPREPLY=($(compgen -c -- \"$current\")); fi\n"
      "      return\n"
      "    fi\n"
      "  done\n"
      "  if ((COMP_CWORD > 1)); then\n"
      "    case ${{COMP_WORDS[1]}} in\n"
      "{}"
      "    *) words= ;;\n"
      "    esac\n"
      "    if [[ $current != -* ]]; then return; fi  # a value: files\n"
      "  fi\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "}}\n"
      "complete -o default -F _muster muster\n",
      names, cases);
}

// zsh runs bash's function.
std::string zsh_completion(const CLI::App& muster) {
  return "#compdef muster\n# Completion of muster for zsh: muster completion zsh > a folder of "
         "fpath/_muster\n"
         "autoload -U +X bashcompinit && bashcompinit\n" +
         bash_completion(muster);
}

std::string fish_text(const std::string& text) {
  return CLI::detail::find_and_replace(CLI::detail::find_and_replace(text, "\\", "\\\\"), "'", "\\'");
}

std::string fish_completion(const CLI::App& muster) {
  std::string script =
      "# Completion of muster for fish: muster completion fish > ~/.config/fish/completions/muster.fish\n";
  for (const CLI::App* command : commands_of(muster)) {
    script += fmt::format("complete -c muster -n __fish_use_subcommand -f -a {} -d '{}'\n",
                          command->get_name(), fish_text(command->get_description()));
    for (const auto& flag : flags_of(*command)) {
      script += fmt::format("complete -c muster -n '__fish_seen_subcommand_from {}' -l {}{} -d '{}'\n",
                            command->get_name(), flag.name.substr(2), flag.value.empty() ? "" : " -r",
                            fish_text(flag.text));
    }
  }
  return script;
}

}  // namespace

std::string man_page(const CLI::App& muster, std::string_view page, std::string_view version) {
  const std::string title(page);
  std::string text =
      fmt::format(".TH {} 1 \"\" \"muster {}\" \"Muster\"\n.SH NAME\n", roff(capitals(title)), version);
  if (page == "muster") {
    text += fmt::format("muster \\- {}\n.SH SYNOPSIS\n\\fBmuster\\fR \\fIcommand\\fR ...\n.SH COMMANDS\n",
                        roff(muster.get_description()));
    for (const CLI::App* command : commands_of(muster)) {
      text += fmt::format(".TP\n\\fBmuster {}\\fR\n{}.\n", roff(command->get_name()),
                          roff(command->get_description()));
    }
    return text;
  }
  for (const CLI::App* command : commands_of(muster)) {
    if (page != "muster-" + command->get_name()) continue;
    const auto flags = flags_of(*command);
    std::string positional;
    for (const CLI::Option* option : command->get_options({})) {
      if (option->get_lnames().empty())
        positional =
            option->get_option_text().empty() ? " " + option->get_name() : " -- " + option->get_option_text();
    }
    text += fmt::format("{} \\- {}\n.SH SYNOPSIS\n\\fBmuster {}\\fR{}{}\n", roff(title),
                        roff(command->get_description()), roff(command->get_name()),
                        flags.empty() ? "" : " [\\fIflags\\fR]", roff(positional));
    add_flags(text, flags);
    if (!command->get_footer().empty())
      text += fmt::format(".SH NOTES\n.nf\n{}\n.fi\n", roff(command->get_footer()));
    return text;
  }
  raise<InvalidArgument>("there is no manual of {}", page);
}

std::string markdown_manual(const CLI::App& muster) {
  std::string text =
      "# Flags\n\n"
      "All commands of `muster` and their flags, as `muster COMMAND --help` shows them. This page is made\n"
      "from the same table: `muster manual --format markdown`.\n\n"
      "Flags in a group that begins with *Muster* are settings: they are flags of every program on Muster,\n"
      "too, and each can be given as the variable in brackets, which tasks get from `muster run`.\n";
  for (const CLI::App* command : commands_of(muster)) {
    text += fmt::format("\n## muster {}\n\n{}.\n", command->get_name(), command->get_description());
    add_tables(text, flags_of(*command));
  }
  text +=
      "\n## Programs\n\n"
      "A program on Muster has all the settings above, and two by which it is told who it is when no\n"
      "launcher says it.\n";
  CLI::App program;
  Config config;
  config.add_flags(program, {"task", "cluster"});
  add_tables(text, flags_of(program));
  return text;
}

std::string completion_script(const CLI::App& muster, std::string_view shell) {
  if (shell == "bash") return bash_completion(muster);
  if (shell == "zsh") return zsh_completion(muster);
  if (shell == "fish") return fish_completion(muster);
  raise<InvalidArgument>("{} is not one of bash, zsh and fish", shell);
}

}  // namespace muster::detail
