#include "muster/manual_command.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/manual.h"

namespace muster::detail {

ManualCommand::ManualCommand(CLI::App& parent) : muster_(parent) {
  manual_ = parent.add_subcommand("manual", "print a page of the manual: muster manual | man -l -");
  manual_->add_option("page", page_, "muster, muster-run, ...")->capture_default_str();
  manual_
      ->add_option("--format", format_,
                   "man, a page for man(1); or markdown, all commands and their flags in one text")
      ->check(CLI::IsMember({"man", "markdown"}))
      ->capture_default_str();
  completion_ = parent.add_subcommand("completion", "print a script that lets a shell complete flags");
  completion_->add_option("shell", shell_, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

bool ManualCommand::chosen() const {
  return manual_->parsed() || completion_->parsed();
}

int ManualCommand::run() const {
  const std::string text = completion_->parsed()   ? completion_script(muster_, shell_)
                           : format_ == "markdown" ? markdown_manual(muster_)
                                                   : man_page(muster_, page_, MUSTER_VERSION);
  fmt::print("{}", text);
  return 0;
}

}  // namespace muster::detail
