#pragma once

// What the coordinator of replicas (replica_coordinator.h) tells the tasks that have variables, as a tensor
// that goes from task to task with the other values of a step.
//
// Pure functions.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/ps/policy/update_policy.h"

namespace muster::detail {

/// A command of the policy's, with its place in the order of all.
struct NumberedCommand {
  int64_t number = 0;  ///< 1 for the first
  Command command;
};

at::Tensor pack(const std::vector<NumberedCommand>& commands);

/// What pack() made: kind, sources, divisor and rate. Throws InvalidArgument for what it did not make.
std::vector<NumberedCommand> unpack(const at::Tensor& packed);

}  // namespace muster::detail
