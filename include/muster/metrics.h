#pragma once

// What a Trainer says of its work.

#include <chrono>
#include <cstdint>
#include <string>

namespace muster {

/// Where the time went, since the Trainer was made or the metrics were reset.
struct Metrics {
  int64_t steps = 0;
  int64_t samples = 0;       ///< of all workers, where the steps were told how many
  double loss = 0;           ///< of the last step: the mean over all workers
  double gradient_norm = 0;  ///< of the last step; 0 unless it was needed
  double learning_rate = 0;
  int64_t skipped = 0;   ///< steps without an update, because a gradient was not finite
  int64_t dropped = 0;   ///< gradients of this worker that came too late to be used, with parameter servers
  double staleness = 0;  ///< mean of this worker's gradients, with parameter servers
  double samples_per_second = 0;
  std::chrono::duration<double> total{0};    ///< in steps
  std::chrono::duration<double> compute{0};  ///< forward and backward
  std::chrono::duration<double> wait{0};     ///< for other workers
  std::chrono::duration<double> update{0};   ///< reducing gradients, updating parameters

  /// "loss 0.0812  3214 samples/s  compute 78 %  wait 3 %  update 19 %"
  std::string to_string() const;
};

}  // namespace muster
