#pragma once

// What the programs that `muster bench train` measures have in common. A subject is a program that runs as
// one worker or several; each makes a TrainWorker and calls serve_training(), which answers the driver
// (conversation.h):
//
//   driver  train <warm-up steps> <steps>
//   rank    ok <seconds of the steps> <loss> [compute <seconds>] [wait <seconds>] [update <seconds>]
//   driver  train-for <seconds>
//   rank    the same, and: steps <how many were used>
//
// The parts of the time are those that the subject can tell apart: `compute` is forward and backward, `wait`
// is for other workers, `update` is the optimizer's. peers/train_ddp.py says the same in Python.
//
// Needs nothing but the standard library. One thread.

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

namespace muster::detail::bench {

/// The steps since begin_turn(): the loss of the last one, and where their time went, in seconds.
struct TrainTurn {
  double loss = 0;
  std::optional<double> compute;
  std::optional<double> wait;
  std::optional<double> update;
};

/// One worker of a subject, with its model, its data and its optimizer. Any function may throw; the text
/// reaches the user.
class TrainWorker {
 public:
  virtual ~TrainWorker() = default;

  virtual void begin_turn() = 0;
  virtual void step() = 0;
  virtual TrainTurn end_turn() = 0;

  /// No more steps in this turn, while others may have some. Gives how many of its steps were used.
  virtual int64_t rest() { throw std::logic_error("this subject can't train for a time"); }
};

/// Answers the driver until it says quit.
void serve_training(TrainWorker& worker, const std::string& directory, int rank);

}  // namespace muster::detail::bench
