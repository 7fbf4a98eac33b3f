#include "muster/base/flags.h"

#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/base/text.h"

namespace muster::detail {
namespace {

const CLI::App& deepest_parsed(const CLI::App& app) {
  for (const CLI::App* subcommand : app.get_subcommands()) return deepest_parsed(*subcommand);
  return app;
}

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& where = deepest_parsed(app);
  std::vector<std::string> known;
  for (const CLI::Option* option : where.get_options({})) {
    for (const auto& name : option->get_lnames()) known.push_back("--" + name);
  }
  std::vector<std::string> subcommands;
  for (const CLI::App* subcommand : where.get_subcommands({})) subcommands.push_back(subcommand->get_name());

  const int code = error.get_exit_code();
  if (code != static_cast<int>(CLI::ExitCodes::ExtrasError) &&
      code != static_cast<int>(CLI::ExitCodes::RequiredError)) {
    return error.what();
  }
  const auto unknown = app.remaining(/*recurse=*/true);
  for (const auto& word : unknown) {
    if (!word.starts_with("-") || word == "--") continue;
    const std::string flag = word.substr(0, word.find('='));
    std::string hint = suggestion(flag, known);
    if (hint.empty() && where.get_option_no_throw("program") != nullptr)
      hint = "; the program and its arguments come after --";
    return fmt::format("{} is not a flag here{}", flag, hint);
  }
  if (!unknown.empty())
    return fmt::format("'{}' was not expected{}", unknown.front(), suggestion(unknown.front(), subcommands));
  return error.what();
}

}  // namespace

std::optional<int> parse_flags(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "{}: {}\nRun with --help for what there is.\n", argc > 0 ? argv[0] : app.get_name(),
               explain(app, error));
    return 2;
  }
}

}  // namespace muster::detail
