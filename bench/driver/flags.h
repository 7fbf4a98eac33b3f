#pragma once

// The flags that every kind of bench has.

#include <chrono>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/driver/output.h"
#include "muster/base/config.h"

namespace muster::detail::bench {

struct Flags {
  std::vector<int> workers;  ///< in order, each once, after check()
  std::vector<std::string> peers;
  std::string baseline;  ///< the folder of another build's programs, whose Muster is compared too
  int rounds = 7;
  std::string timeout = "2m";
  Output::Files files;
  Config config;

  /// All but --plot. It must outlive the parsing of `app`. `peers_text` explains --peers.
  void add_to(CLI::App& app, const std::string& peers_text);
  void add_plot_to(CLI::App& app);

  /// Also reads the environment. Throws InvalidArgument.
  void check();

  /// --timeout, after check().
  std::chrono::milliseconds answer_timeout() const;

  /// "one turn", "7 turns"
  std::string turns() const;
};

/// A flag with several values: --name a,b
template <typename Values>
CLI::Option* add_list(CLI::App& app, const std::string& name, Values& values, const std::string& text) {
  auto* option = app.add_option(name, values, text)->delimiter(',')->allow_extra_args(false);
  return values.empty() ? option : option->capture_default_str();
}

/// The most that any flag of rounds or samples may be, and of seconds.
constexpr int kMostTurns = 100000;
constexpr double kLongestTurn = 3600;

}  // namespace muster::detail::bench
