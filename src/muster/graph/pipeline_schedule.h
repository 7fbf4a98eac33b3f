#pragma once

// The timetable of a pipeline (muster/pipeline.h): when each stage takes which pass of which micro-batch,
// from what the passes take. It follows the rules that tasks follow when they run one: the control
// dependencies of pipeline.cc, and the executor's choice among what can run (room runtime).
//
//   PipelineTimetable table = simulate_pipeline({{.forward = 1}, {.forward = 2}}, 8,
//                                               PipelineSchedule::k1F1B);
//   table.duration;      // of a step, without the update
//   table.bubble();      // the share of it in which stages have nothing to do
//
// What goes from stage to stage is there at once. Pure functions; nothing blocks.

#include <cstddef>
#include <optional>
#include <vector>

#include "muster/pipeline.h"

namespace muster::detail {

/// How long the passes of one micro-batch take on a stage, in any unit of time.
struct StageTimes {
  double forward = 1;
  double backward_inputs = 1;   ///< Of the backward pass: what the stage before waits for.
  double backward_weights = 1;  ///< Of the backward pass: the gradients of the stage's parameters.
};

enum class PassKind {
  kForward,
  kBackward,  ///< With the gradients of parameters, except in the schedule zero bubble.
  kWeights,   ///< The gradients of parameters alone: a filler.
};

struct PipelinePass {
  PassKind kind = PassKind::kForward;
  size_t micro_batch = 0;
  double start = 0;
  double end = 0;
};

struct PipelineTimetable {
  std::vector<std::vector<PipelinePass>> stages;  ///< The passes of each, in the order of time.
  double duration = 0;

  /// The share of the time of all stages in which they have nothing to do.
  double bubble() const;

  /// For how many micro-batches at once a stage holds what their backward passes need.
  size_t most_held(size_t stage) const;
};

/// Where the schedule zero bubble has a stage, counted from 0, in a pipeline.
struct PipelinePlace {
  size_t stage = 0;
  size_t stages = 1;
  size_t micro_batches = 1;

  /// Whether the stage computes the gradients of its parameters for this micro-batch when it has nothing else
  /// to do: for as many of the first as there are stages before it, and for the last ones. That leaves as
  /// little idle time as putting all of them off, which is done where there are few.
  bool is_put_off(size_t micro_batch) const;

  /// The micro-batch whose gradients that were put off come before the forward pass of this one, so that the
  /// stage holds what backward passes need of no more micro-batches than there are stages.
  std::optional<size_t> put_off_until(size_t micro_batch) const;

 private:
  bool has_few() const { return micro_batches + 2 < 2 * stages; }
};

/// Throws InvalidArgument where there is no stage, no micro-batch, or a time that is negative or no number.
PipelineTimetable simulate_pipeline(const std::vector<StageTimes>& stages, size_t micro_batches,
                                    PipelineSchedule schedule);

/// What the bubble of GPipe and 1F1B is where all stages are equally slow: (p - 1) / (m + p - 1) for p stages
/// and m micro-batches.
double bubble_by_formula(size_t stages, size_t micro_batches);

}  // namespace muster::detail
