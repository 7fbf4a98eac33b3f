#include "muster/base/flags.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

constexpr size_t kHelpColumns = 100;
constexpr const char* kEmptyValue = "the value is empty";

// Lines of at most `width` characters, broken between words; a longer word has a line of its own.
std::vector<std::string> wrap(const std::string& text, size_t width) {
  std::vector<std::string> lines;
  for (const auto& paragraph : split(text, '\n')) {
    std::string line;
    for (const auto& word : split(paragraph, ' ')) {
      if (!line.empty() && line.size() + 1 + word.size() > width) {
        lines.push_back(line);
        line.clear();
      }
      line += (line.empty() ? "" : " ") + word;
    }
    lines.push_back(line);
  }
  return lines;
}

// CLI11's own, with what is said of a flag wrapped in its column.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return entry(make_option_name(option, is_positional) + make_option_opts(option),
                 make_option_desc(option));
  }

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    const std::string help = CLI::Formatter::make_help(app, std::move(name), mode);
    return CLI::detail::find_and_replace(help, "\n\n\n", "\n\n");  // between groups
  }

  std::string make_subcommand(const CLI::App* command) const override {
    return entry(command->get_display_name(true), command->get_description());
  }

  std::string make_description(const CLI::App* app) const override {
    return fmt::format("{}", fmt::join(wrap(CLI::Formatter::make_description(app), kHelpColumns), "\n"));
  }

 private:
  std::string entry(const std::string& name, const std::string& text) const {
    const size_t column = get_column_width();
    const std::string indent = fmt::format("\n{:{}}", "", column);
    const std::string first = name.size() + 4 > column ? fmt::format("  {}{}", name, indent)
                                                       : fmt::format("  {:<{}}", name, column - 2);
    return fmt::format("{}{}\n", first, fmt::join(wrap(text, kHelpColumns - column), indent));
  }
};

// A program's own formatter stays.
void wrap_help(CLI::App& app) {
  const auto formatter = app.get_formatter();
  if (formatter && typeid(*formatter) == typeid(CLI::Formatter)) {
    const auto wrapping = std::make_shared<HelpFormatter>();
    wrapping->column_width(formatter->get_column_width());
    app.formatter(wrapping);
  }
  for (CLI::App* command : app.get_subcommands({})) wrap_help(*command);
}

const CLI::Option* find_flag(const CLI::App& app, const std::string& word) {
  for (const CLI::App* at = &app; at != nullptr; at = at->get_parent()) {
    if (const auto* option = at->get_option_no_throw(word.substr(0, word.find('=')))) return option;
    const bool is_short = word.size() > 2 && word[1] != '-';  // with its value, as -n2
    if (const auto* option = is_short ? at->get_option_no_throw(word.substr(0, 2)) : nullptr) return option;
  }
  return nullptr;
}

const CLI::App* find_command(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->check_name(name)) return command;
  }
  return nullptr;
}

struct Unknown {
  const CLI::App* where;
  std::string flag;  // empty: there is none
};

// The first flag that nobody knows, in the order in which they were typed, and before a "--": CLI11 gives the
// words after it as unexpected, too, once it has lost its place.
Unknown first_unknown(const CLI::App& app, std::span<const char* const> words) {
  const CLI::App* where = &app;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string word = words[i];
    if (word == "--") break;
    if (!word.starts_with("-") || parse_real(word)) {
      if (const CLI::App* command = find_command(*where, word)) where = command;
      continue;
    }
    const CLI::Option* option = find_flag(*where, word);
    if (option == nullptr) return {where, word.substr(0, word.find('='))};
    const bool takes_next = option->get_items_expected_min() > 0 && word.find('=') == std::string::npos;
    if (takes_next) ++i;
  }
  return {where, ""};
}

std::string explain_unknown(const CLI::App& app, std::span<const char* const> words) {
  const auto [where, flag] = first_unknown(app, words);
  // Flags of a command that is not there are nobody's.
  const auto commands_of = [](const CLI::App& of) {
    std::vector<std::string> names;
    for (const CLI::App* command : of.get_subcommands({})) names.push_back(command->get_name());
    return names;
  };
  const std::string first = words.empty() ? "" : words.front();
  const bool is_no_command = !first.empty() && !first.starts_with("-") && find_command(app, first) == nullptr;
  if (!flag.empty() && is_no_command && !commands_of(app).empty())
    return fmt::format("'{}' is no command{}", first, suggestion(first, commands_of(app)));
  if (flag.empty()) {
    const auto unknown = app.remaining(/*recurse=*/true);
    if (unknown.empty()) return "";
    return fmt::format("'{}' was not expected{}", unknown.front(),
                       suggestion(unknown.front(), commands_of(*where)));
  }
  std::vector<std::string> known;
  for (const CLI::Option* option : where->get_options({})) {
    for (const auto& name : option->get_lnames()) known.push_back("--" + name);
  }
  std::string hint = suggestion(flag, known);
  if (is_flag_of_launcher(flag)) hint = "; `muster run` has it, before --";
  if (where->get_option_no_throw("program") != nullptr)
    hint += hint.empty() ? "; if it is one of the program's, it comes after -- and the program"
                         : " A flag of the program's comes after -- and the program";
  return fmt::format("{} is not a flag here{}", flag, hint);
}

// "--epochs: Value 0 not in range 0.000000 to 179769...": CLI11 prints the bounds of a double in full.
std::string explain_range(const CLI::App& where, const std::string& text) {
  constexpr std::string_view kValue = ": Value ";
  constexpr std::string_view kRange = " not in range ";
  constexpr std::string_view kTo = " to ";
  const size_t value = text.find(kValue);
  const size_t range = text.rfind(kRange);
  const size_t to = text.rfind(kTo);
  if (value == std::string::npos || range == std::string::npos || to == std::string::npos || range < value ||
      to < range)
    return text;
  const std::string name = text.substr(0, value);
  const std::string given = text.substr(value + kValue.size(), range - value - kValue.size());
  const auto least = parse_real(text.substr(range + kRange.size(), to - range - kRange.size()));
  const auto most = parse_real(text.substr(to + kTo.size()));
  if (!least || !most) return text;
  const CLI::Option* option = where.get_option_no_throw(name);
  const bool above = option != nullptr && option->get_type_name().ends_with("POSITIVE");
  std::string expected = fmt::format("from {}", *least);
  if (above) expected = "above 0";
  if (*most < std::numeric_limits<double>::max()) expected += fmt::format(" to {}", *most);
  return fmt::format("{} {} is not a number {}", name, given, expected);
}

// "Could not convert: --workers = two".
std::string explain_conversion(const CLI::App& where, const std::string& text) {
  constexpr std::string_view kBefore = "Could not convert: ";
  const size_t equals = text.find(" = ");
  if (!text.starts_with(kBefore) || equals == std::string::npos) return text;
  const std::string name = text.substr(kBefore.size(), equals - kBefore.size());
  const CLI::Option* option = where.get_option_no_throw(name);
  if (option == nullptr) return text;
  const std::string type = option->get_type_name();
  const bool whole = type.starts_with("INT") || type.starts_with("UINT");
  return fmt::format("{} {} is not {}", name, text.substr(equals + 3),
                     whole                       ? "a whole number"
                     : type.starts_with("FLOAT") ? "a number"
                     : type.empty()              ? "true or false"
                                                 : "a " + type);
}

std::string explain_value(const CLI::App& where, const CLI::ParseError& error) {
  switch (static_cast<CLI::ExitCodes>(error.get_exit_code())) {
    case CLI::ExitCodes::ValidationError:
      return explain_range(where, error.what());
    case CLI::ExitCodes::ConversionError:
      return explain_conversion(where, error.what());
    default:
      return error.what();
  }
}

const CLI::App& deepest_parsed(const CLI::App& app) {
  for (const CLI::App* subcommand : app.get_subcommands()) return deepest_parsed(*subcommand);
  return app;
}

// "graph is required (the file: model.pb)"
std::string explain_required(const CLI::App& where, const std::string& what) {
  for (const CLI::Option* option : where.get_options({})) {
    if (option->get_required() && option->empty() && what.starts_with(option->get_name() + " is required"))
      return fmt::format("{} ({})", what, option->get_description());
  }
  return what;
}

std::string explain(const CLI::App& app, const CLI::ParseError& error, std::span<const char* const> words) {
  switch (static_cast<CLI::ExitCodes>(error.get_exit_code())) {
    case CLI::ExitCodes::ExtrasError:
    case CLI::ExitCodes::RequiredError: {
      const std::string unknown = explain_unknown(app, words);
      return unknown.empty() ? explain_required(deepest_parsed(app), error.what()) : unknown;
    }
    default:
      return explain_value(deepest_parsed(app), error);
  }
}

bool is_number(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.starts_with("INT") || type.starts_with("UINT") || type.starts_with("FLOAT");
}

// CLI11 takes --epochs "" for 0, as in --epochs "$epochs" of a script that has not set it.
void refuse_empty_numbers(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options({})) {
    for (const std::string& text : option->results()) {
      if (text.empty() && option->get_items_expected_min() > 0 && is_number(*option))
        throw CLI::ValidationError(option->get_name(), kEmptyValue);
    }
  }
  for (const CLI::App* command : app.get_subcommands()) refuse_empty_numbers(*command);
}

// CLI11 takes any number for a truth, too.
bool is_truth(std::string text) {
  constexpr std::array kTruths = {"true",    "false", "on", "off", "yes", "no", "enable",
                                  "disable", "y",     "n",  "t",   "f",   "1",  "0"};
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::ranges::find(kTruths, text) != kTruths.end();
}

// CLI11 takes any # for the beginning of a comment, also one between quotes.
std::string without_comments(const std::string& text) {
  std::string result;
  char quote = '\0';
  bool is_comment = false;
  for (const char c : text) {
    if (c == '\n') {
      quote = '\0';
      is_comment = false;
    } else if (is_comment) {
      continue;
    } else if (quote != '\0') {
      if (c == quote) quote = '\0';
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '#') {
      is_comment = true;
      continue;
    }
    result += c;
  }
  return result;
}

// A flag that may be given several times, each time with one value more.
bool adds_up(const CLI::Option& option) {
  return option.get_items_expected_max() > 1 && option.get_delimiter() == '\0' && !option.get_positional();
}

// What keeps CLI11 from taking a word in brackets apart, until keep_brackets() removes it.
constexpr char kKept = '\x01';

std::string kept(const std::string& word) {
  return word.size() > 1 && word.front() == '[' && word.back() == ']' ? kKept + word : word;
}

bool has_words(const CLI::App& app) {
  const auto commands = app.get_subcommands({});
  return app.get_option_no_throw("program") != nullptr ||
         std::any_of(commands.begin(), commands.end(), [](const CLI::App* each) { return has_words(*each); });
}

// The flag `key`, or the words that are no flag ("program").
CLI::Option* find_in_file(CLI::App& command, const std::string& key) {
  if (key == "config" || key == "help") return nullptr;  // of the command line only
  if (CLI::Option* flag = command.get_option_no_throw("--" + key)) return flag;
  return command.get_option_no_throw(key);
}

}  // namespace

bool is_flag_of_launcher(const std::string& flag) {
  return flag == "--workers" || flag == "--ps" || flag == "--hosts" || flag == "--max-restarts";
}

std::optional<int> parse_flags(CLI::App& app, int argc, const char* const* argv) {
  wrap_help(app);
  std::vector<std::string> words_given(argv, argv + argc);
  if (has_words(app)) {
    const auto end = std::find(words_given.begin(), words_given.end(), "--");
    std::transform(end, words_given.end(), end, kept);
  }
  std::vector<const char*> pointers;
  for (const auto& word : words_given) pointers.push_back(word.c_str());
  try {
    app.parse(argc, pointers.data());
    refuse_empty_numbers(app);
    return std::nullopt;
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    const std::span<const char* const> words(argv, static_cast<size_t>(argc));
    fmt::print(stderr, "{}: {}\nRun with --help for what there is.\n",
               argc > 0 && app.get_name().empty() ? argv[0] : app.get_name(),
               explain(app, error, words.subspan(std::min<size_t>(1, words.size()))));
    return 2;
  }
}

void refuse_empty_values(CLI::App& command) {
  for (CLI::Option* option : command.get_options({})) {
    if (option->get_items_expected_min() == 0 || option->get_positional()) continue;
    option->check([](const std::string& text) { return text.empty() ? std::string(kEmptyValue) : ""; });
  }
}

void keep_brackets(CLI::Option& option) {
  option.transform([](const std::string& word) { return word.starts_with(kKept) ? word.substr(1) : word; });
}

void read_flags_file(CLI::App& command, const std::filesystem::path& file) {
  std::ifstream input(file);
  if (!input || std::filesystem::is_directory(file)) {
    raise<InvalidArgument>("--config {} can't be read: {}", file.string(),
                           input ? "it is a folder" : describe_errno(errno));
  }
  // It may be a pipe, and without an end.
  constexpr size_t kLargestFile = size_t{1} << 20U;
  std::string text(kLargestFile + 1, '\0');
  input.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(input.gcount()));
  if (text.size() > kLargestFile)
    raise<InvalidArgument>("--config {} is larger than {} bytes", file.string(), kLargestFile);
  const auto is_control = [](char c) {
    return static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\r' && c != '\t';
  };
  if (std::ranges::any_of(text, is_control))
    raise<InvalidArgument>("--config {} is not a file of text (in UTF-8, as editors write it)",
                           file.string());
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // which some editors begin a file with
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  std::istringstream lines(without_comments(text));
  constexpr char kNoComment = '\x01';
  CLI::ConfigTOML toml;
  toml.comment(kNoComment);
  std::set<std::string> typed;
  for (const CLI::Option* option : command.get_options({})) {
    if (option->count() > 0) typed.insert(option->get_name());
  }
  for (const auto& item : toml.from_config(lines)) {
    if (!item.parents.empty()) {
      raise<InvalidArgument>("--config {}: it has a section, [{}]; flags stand one a line, in no section",
                             file.string(), item.parents.front());
    }
    CLI::Option* option = find_in_file(command, item.name);
    if (option == nullptr) {
      std::vector<std::string> known;
      for (const CLI::Option* other : command.get_options({})) {
        for (const auto& name : other->get_lnames()) {
          if (find_in_file(command, name) != nullptr) known.push_back(name);
        }
      }
      raise<InvalidArgument>("--config {}: {} is not a flag of {}{}", file.string(), item.name,
                             command.get_name(), suggestion(item.name, known));
    }
    const bool is_typed = typed.contains(option->get_name());
    if (is_typed && !adds_up(*option)) continue;
    if (option->get_items_expected_min() > 0 && std::ranges::all_of(item.inputs, &std::string::empty))
      raise<InvalidArgument>("--config {}: {}: {}", file.string(), item.name, kEmptyValue);
    const bool is_switch = option->get_items_expected_min() == 0 && option->get_type_name().empty();
    if (is_switch && !std::ranges::all_of(item.inputs, is_truth))
      raise<InvalidArgument>("--config {}: --{} {} is not true or false", file.string(), item.name,
                             fmt::join(item.inputs, " "));
    try {
      const std::vector<std::string> more = is_typed ? option->results() : std::vector<std::string>();
      if (is_typed) option->clear();
      for (const auto& value : item.inputs)
        option->add_result(option->get_positional() ? kept(value) : value);
      for (const auto& value : more) option->add_result(value);
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      raise<InvalidArgument>("--config {}: {}", file.string(), explain_value(command, error));
    }
  }
}

}  // namespace muster::detail
