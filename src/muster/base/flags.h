#pragma once

// The command line of every Muster program. CLI11 does the syntax; this adds near matches for a flag that
// does not exist, one shape for what is printed, and a --help of at most 100 columns, unless the program has
// a formatter of its own. To be called from one thread, before others are made.

#include <filesystem>
#include <optional>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace muster::detail {

/// Parses into what was bound to `app`. Returns the exit code when the program should end now: 0 after --help
/// or --version, 2 after a mistake, which has been explained on standard error.
std::optional<int> parse_flags(CLI::App& app, int argc, const char* const* argv);

/// Whether `muster run` alone has the flag "--workers", so that a program which is given it can say so.
bool is_flag_of_launcher(const std::string& flag);

/// From now on, a flag of `command` with an empty value is a mistake, as --log-dir "$folder" of a script that
/// has not set it; what is added later may have one. An empty number is a mistake of every flag.
void refuse_empty_values(CLI::App& command);

/// Words that stand in brackets, [64,64], stay as they are for this option, behind -- and in a file. CLI11
/// would take them apart.
void keep_brackets(CLI::Option& option);

/// Gives those flags of `command`, which has been parsed, that were not typed the values that they have in
/// `file`: lines of TOML such as `workers = 4`, `hogwild = true` and `program = ["mnist", "--epochs", "5"]`.
/// Throws InvalidArgument, with the file and the key, for what can't be read, is no flag or has a value that
/// does not fit.
void read_flags_file(CLI::App& command, const std::filesystem::path& file);

}  // namespace muster::detail
