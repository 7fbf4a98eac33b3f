#pragma once

// When a task ran its part of a step, on its way from the executor to the user's Timeline
// (muster/timeline.h).
//
// Pure functions.

#include <string>
#include <vector>

#include "muster/runtime/executor.h"
#include "muster/runtime/runtime.pb.h"
#include "muster/timeline.h"

namespace muster::detail {

runtime::PartTimes to_proto(const Program& program, const std::vector<NodeTime>& times);

/// As bytes, which go over a data link. Unpacking throws DataLoss for what are none.
at::Tensor pack_times(const runtime::PartTimes& times);
runtime::PartTimes unpack_times(const at::Tensor& bytes);

/// Adds what a task has said. Spans begin at 0 and are in order after put_in_order().
void add_spans(Timeline& timeline, const std::string& task, const runtime::PartTimes& times);
void put_in_order(Timeline& timeline);

}  // namespace muster::detail
