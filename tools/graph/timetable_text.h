#pragma once

// The timetable of a pipeline as text: a row for each stage, a column or a few for each unit of time.
//
//   stage 0  F0 F1 .  B0--- F2 B1--- ...
//   stage 1  .  F0 B0--- F1 B1--- ...
//
// Where that is wider than the terminal, a unit of time is one character: digits for forward passes, letters
// for backward passes; and where even that is too wide, rows go on below. Pure functions.

#include <string>
#include <string_view>
#include <vector>

#include "muster/graph/pipeline_schedule.h"

namespace muster::detail {

/// "gpipe", "1f1b" or "zero-bubble".
std::string_view name_of(PipelineSchedule schedule);

/// Rows of at most `columns`, with a sentence on how to read them, the bubble, and what stages hold.
std::string timetable_text(const PipelineTimetable& table, PipelineSchedule schedule, size_t columns);

/// A line for each of the schedules.
struct ComparedTimetable {
  PipelineSchedule schedule = PipelineSchedule::kGPipe;
  PipelineTimetable table;
};
std::string comparison_text(const std::vector<ComparedTimetable>& tables);

}  // namespace muster::detail
