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

/// Some commands of one coordinator, in their order. One that begins anew, since its task was started again,
/// has another number, and counts its commands from 1 again.
struct CommandList {
  uint64_t coordinator = 0;
  std::vector<NumberedCommand> commands;
};

at::Tensor pack(const CommandList& list);

/// What pack() made: kind, sources, divisor and rate. Throws InvalidArgument for what it did not make.
CommandList unpack(const at::Tensor& packed);

}  // namespace muster::detail
