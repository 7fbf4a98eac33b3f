#pragma once

// The work of a parameter server in a job: serves the models that the chief's Trainers plan, one after the
// other, and embedding tables, until all workers have finished.

#include "muster/train/job.h"

namespace muster {

void serve_parameters(Job& job);

/// Under which key the chief puts the plan for its n-th Trainer, from 1.
std::string plan_key(int n);

}  // namespace muster
