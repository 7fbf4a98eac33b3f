#pragma once

// The flags that every measurement of `muster bench` has.

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/driver/output.h"
#include "bench/driver/stage.h"
#include "muster/base/config.h"

namespace CLI {
class App;
}

namespace muster {

struct BenchFlags {
  std::vector<int> workers;  ///< in order, each once, after check()
  std::vector<std::string> peers;
  int rounds = 7;
  std::string timeout = "2m";
  BenchOutput::Files files;
  Config config;

  /// All but --plot. It must outlive the parsing of `app`. `peers_text` explains --peers.
  void add_to(CLI::App& app, const std::string& peers_text);
  void add_plot_to(CLI::App& app);

  /// Throws InvalidArgument.
  void check();

  /// After check(): reads the environment, and takes out who a launcher said that we are.
  BenchStage::Options stage();
};

/// The most that any flag of rounds or samples may be.
constexpr int kMostTurns = 100000;

/// The folder of this program, where those that are measured stand.
std::filesystem::path folder_of_programs();

/// Throws InvalidArgument that names `what`, with the nearest of those `known`.
void check_is_one_of(const std::string& what, const std::string& value,
                     const std::vector<std::string>& known);

/// Throws InvalidArgument, with how to build it, when `program` is not in `folder`.
void check_is_built(const std::filesystem::path& folder, const std::string& program);

}  // namespace muster
