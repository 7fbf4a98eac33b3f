#pragma once

// The work of a parameter server in a job: serves the models that the chief's Trainers plan, as many at a time
// as there are, and embedding tables; until all workers have finished.
//
// Plans come through the coordinator, under numbers that count up. Each has a ParameterServer of its own, with
// its own threads, parameters and steps; the calling thread only looks for the next plan, for models that have
// failed, which ends the job, and for those that all workers have left, which it lets go. The newest stays: a
// worker that failed after its training and is started again must hear that it is over.

#include "muster/train/job.h"

namespace muster {

/// Blocks until the job has ended. Throws what ended it, unless that is that all workers have finished.
void serve_parameters(Job& job);

/// Under which key the chief puts the n-th plan, from 1.
std::string plan_key(int n);

}  // namespace muster
