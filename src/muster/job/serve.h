#pragma once

// The work of a parameter server in a job: serves the models that the chief's Trainers publish, as many at a
// time as there are, and embedding tables; until all workers have finished.
//
// Model specs come through the coordinator, under numbers that count up. Each has a ParameterServer of its
// own, with its own threads, parameters and steps; the calling thread only looks for the next model spec, for
// models whose server has stopped on an error, which ends the job, and for those that all workers have left,
// which it lets go. The newest stays: a worker that failed after its training and is started again must hear
// that it is over.
//
// It blocks until the workers have finished, and throws Aborted or PeerLost when the job ends otherwise.

#include "muster/job/job_context.h"

namespace muster::detail {

/// Blocks until the job has ended. Throws what ended it, unless that is that all workers have finished.
void serve_parameters(JobContext& job);

/// Under which key the chief puts the n-th model spec, from 1.
std::string model_spec_key(int n);

}  // namespace muster::detail
