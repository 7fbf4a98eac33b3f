#pragma once

// A subject of muster-bench as a value: what it is called, and how it is started. running_subject.h runs it.

#include <map>
#include <string>
#include <vector>

namespace muster::detail::bench {

/// One variant of a subject, as the table and the plot name it.
struct Variant {
  std::string subject;
  std::string variant;

  bool operator==(const Variant&) const = default;
};

/// How one variant is started: one process or several, which become its ranks.
struct SubjectCommand {
  Variant of;
  int workers = 1;  ///< the ranks that are measured
  int servers = 0;  ///< their ranks come after those of the workers
  /// The arguments of each process, the program first. The word DIR stands for the folder of its FIFOs.
  std::vector<std::vector<std::string>> processes;
  std::map<std::string, std::string> variables = {};  ///< of the environment, beside what is there
  std::vector<std::string> without = {};              ///< variables that are taken out of what is there
  bool spins = false;  ///< its ranks use cores while they wait: they are stopped between their turns

  int ranks() const { return workers + servers; }
  std::string name() const;  ///< "openmpi (tcp), 2 ranks"
};

}  // namespace muster::detail::bench
