#pragma once

// What one kind of bench (collectives, training, parameter servers) says for itself: its flags, whom it
// compares, what is measured, what a turn of a subject is, and what is shown. The rest is done in one place,
// driver.h.
//
//   groups()   subjects that run at the same time, and the measurements that are made with them
//     turn()     of one subject: asks its ranks, and makes samples of what they answer
//     report()   prints what was measured, and keeps what the plot needs

#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/driver/flags.h"
#include "bench/driver/output.h"
#include "bench/driver/peers.h"
#include "bench/driver/running_subject.h"
#include "bench/driver/subject.h"

namespace muster::detail::bench {

/// One measurement of one subject.
struct Sample {
  double us = 0;                             ///< microseconds of one operation or step
  std::map<std::string, double> parts = {};  ///< what else was found, by name
};

struct Turn {
  std::vector<Sample> samples;
  bool verified = true;  ///< no rank had a wrong result
};

/// The subject does not offer what is measured. It is left out there, which is no failure.
class NotOffered : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// All turns of one subject in one measurement.
struct Series {
  Variant of;
  int workers = 1;
  std::vector<Sample> samples;  ///< at least one
  bool verified = true;

  /// Of all samples that have this part; nothing when none has.
  std::optional<double> median_of(const std::string& part) const;
};

/// The times of a series.
struct Result {
  Variant of;
  double median_us = 0;
  double p10_us = 0;
  double p90_us = 0;
  bool verified = false;
  std::optional<double> repeated_us = std::nullopt;  ///< median, of a collective on data that nobody rewrote
};

Result summarise(const Series& series);

/// What is measured of all subjects of a group, in turns.
struct Measurement {
  std::string label;  ///< for the progress line and for messages
  double cost = 1;    ///< how long a turn takes, as others say it of theirs

  /// Takes one turn of a subject. `fastest_us` is its fastest sample so far; the first turn,
  /// which has none, is there to find it, and its samples are not counted. Throws SubjectFailed, NotOffered,
  /// Interrupted.
  std::function<Turn(RunningSubject& subject, std::optional<double> fastest_us)> turn;

  /// A subject that failed or does not offer this is missing.
  std::function<void(const std::vector<Series>& measured, Output& output)> report;
};

/// Subjects that run at the same time, and what is measured of them, one after the other.
struct Group {
  std::vector<SubjectCommand> subjects;
  std::vector<Measurement> measurements;
};

class Kind {
 public:
  virtual ~Kind() = default;

  /// To `app`, which must not outlive this.
  virtual void add_flags(CLI::App& app) = 0;

  /// What the flags say. Throws InvalidArgument.
  virtual void check() = 0;

  /// The program with which Muster itself is measured.
  virtual std::string program() const = 0;

  /// Those that there are to compare with.
  virtual std::vector<PeerState> peers(const Surroundings& surroundings) = 0;

  /// The line above everything.
  virtual std::string title() const = 0;

  /// `peers` are those chosen. The groups refer to this, and to nothing else. Throws InvalidArgument when it
  /// can't be measured.
  virtual std::vector<Group> groups(const Surroundings& surroundings,
                                    const std::vector<std::string>& peers) = 0;

  /// At the end: what is printed, and the picture for --plot.
  virtual std::string closing() const { return ""; }
  virtual std::string plot() const { return ""; }

  const Flags& flags() const { return flags_; }

 protected:
  explicit Kind(std::vector<int> workers) { flags_.workers = std::move(workers); }

  Flags flags_;
};

}  // namespace muster::detail::bench
