#pragma once

// Where to cut a model for a pipeline (pipeline.h), found by measuring it.
//
//   std::vector<muster::Stage> stages = muster::place_in_stages(
//       loss, {"/job:worker/task:0", "/job:worker/task:1"}, {{x, images}, {labels, targets}});
//
// Everything that the loss needs is run in this process, node by node, forward and backward, on the tensors
// that are given; then it is cut, in the order in which the nodes were made, so that the slowest stage takes
// as little time as it can.

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/graph.h"

namespace muster {

/// A part of a model on one task.
struct Stage {
  std::string device;
  std::string first;  ///< Its first node that depends on the batch, and its last.
  std::string last;
  std::chrono::nanoseconds forward{0};  ///< How long it took, with the threads that this process has.
  std::chrono::nanoseconds backward{0};
};

/// Cuts what the loss needs into as many stages as there are devices, and places the nodes, variables with
/// the first node that uses them. `batch` has a value for each placeholder: best as large as a micro-batch
/// will be. Blocks while it measures, for some steps of training. Throws InvalidArgument where there are more
/// devices than nodes, for what is no device, and as a run does.
std::vector<Stage> place_in_stages(const Output& loss, const std::vector<std::string>& devices,
                                   const std::vector<std::pair<Output, at::Tensor>>& batch);

}  // namespace muster
