#pragma once

// Where the results of `muster bench` go: the table to standard output as it grows, notices and the progress
// line below it to standard error, and the files of --json and --plot.

#include <fstream>
#include <functional>
#include <string>

#include "muster/base/config.h"
#include "muster/progress.h"

namespace muster::detail::bench {

class Output {
 public:
  struct Files {
    std::string json;  ///< empty: none
    std::string plot;
  };

  /// Throws SystemError when a file can't be written.
  Output(ProgressStyle style, Files files);

  /// Worth a line on standard error; the rest goes on.
  void notice(const std::string& text);
  /// `share` of the work, from 0 to 1, is done; what comes now.
  void progress(double share, const std::string& text);

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

}  // namespace muster::detail::bench
