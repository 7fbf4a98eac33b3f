#pragma once

// What a Trainer says of its work.

#include <chrono>
#include <cstdint>
#include <string>

namespace muster {

/// Where the time went, since the Trainer was made or the metrics were reset.
struct Metrics {
  int64_t steps = 0;  ///< The steps that were taken.
  /// The samples of all workers, where the steps were told how many. With parameter servers, of the steps
  /// that this worker took part in: not of others' while it was in finish_epoch(). With ps-local, of steps
  /// since the last average, as if all workers had had as many as this one.
  int64_t samples = 0;
  /// The mean loss over all workers in the last step; of this worker alone where each takes steps of its own
  /// (ps-async, ps-ssp with a staleness, ps-local).
  double loss = 0;
  /// The norm of the last step's gradient; 0 unless it was needed, and with servers, which alone know it.
  double gradient_norm = 0;
  double learning_rate = 0;  ///< The learning rate of the last step.
  /// The steps without an update, because a gradient was not finite. With servers, the gradients of this worker
  /// that were left out for that: the step may have been made of others'.
  int64_t skipped = 0;
  int64_t dropped = 0;            ///< The gradients of this worker that servers found too late to use.
  double staleness = 0;           ///< The mean staleness of this worker's gradients on the servers.
  double samples_per_second = 0;  ///< The samples of all workers in a second.
  std::chrono::duration<double> total{0};    ///< The time in steps, which is the sum of the following three.
  std::chrono::duration<double> compute{0};  ///< The time in forward and backward passes.
  std::chrono::duration<double> wait{0};     ///< The time spent waiting for other workers.
  std::chrono::duration<double> update{0};   ///< The time in reducing gradients and updating parameters.

  /// "loss 0.0812  3214 samples/s  compute 78 %  wait 3 %  update 19 %"
  std::string to_string() const;
};

}  // namespace muster
