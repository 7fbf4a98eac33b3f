#pragma once

// Random numbers that differ from worker to worker and are the same in every run.
//
//   muster::seed(job, 1);
//
// torch::manual_seed(1) on all workers lets them all draw the same: then dropout masks the same units on
// every worker, and noise is the same everywhere, which is no average over different draws. Parameters need
// no care: all workers start from the chief's.

#include <cstdint>

#include "muster/job.h"

namespace muster {

/// Calls torch::manual_seed() with a seed of this worker's own. The chief's is `seed` itself, so that a
/// program alone draws what it would with torch::manual_seed(seed). Throws InvalidArgument on a task that is
/// not a worker.
void seed(const Job& job, uint64_t seed);

}  // namespace muster
