#pragma once

// The manual of a command, in the forms in which people look it up, made from its flags: those of the command
// and the settings of base/config.cc, which have their names, defaults and sentences in one place. Pure
// functions; any thread may call them.

#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace muster::detail {

/// A page for man(1): "muster", or "muster-run" for its command `run`. Throws InvalidArgument when there is
/// no such command.
std::string man_page(const CLI::App& muster, std::string_view page, std::string_view version);

/// All commands and their flags as tables, in Markdown.
std::string markdown_manual(const CLI::App& muster);

/// A script that completes commands and flags, for bash, zsh or fish. Throws InvalidArgument for another
/// shell.
std::string completion_script(const CLI::App& muster, std::string_view shell);

}  // namespace muster::detail
