#pragma once

// Where the results of `muster bench` go: the table to standard output as it grows, notices and the progress
// line below it to standard error, and the files of --json and --plot.

#include <fstream>
#include <functional>
#include <string>

#include "bench/driver/stage.h"
#include "muster/base/config.h"
#include "muster/observe/progress.h"

namespace muster {

class BenchOutput : public BenchObserver {
 public:
  struct Files {
    std::string json;  ///< empty: none
    std::string plot;
  };

  /// Throws SystemError when a file can't be written.
  BenchOutput(ProgressStyle style, Files files);

  void on_notice(const std::string& text) override;
  void on_progress(double share, const std::string& text) override;

  void print(const std::string& text);
  void write_json(const std::string& line);

  /// Runs `measure`, then draws `plot` into its file if there is one. The exit code: 0, 1 when `measure` says
  /// that something failed, 128 + the signal that stopped it. Throws SystemError when a file could not be
  /// written.
  int finish(const std::function<bool()>& measure, const std::function<std::string()>& plot);

 private:
  Progress progress_;
  const Files files_;
  std::ofstream json_;
  std::ofstream plot_;
};

}  // namespace muster
