#include "graph/timetable_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/text.h"

namespace muster::detail {
namespace {

using ::testing::HasSubstr;

PipelineTimetable table_of(size_t stages, size_t micro_batches, PipelineSchedule schedule) {
  return simulate_pipeline(std::vector<StageTimes>(stages), micro_batches, schedule);
}

TEST(TimetableText, AStageIsARowAndAUnitOfTimeAColumn) {
  EXPECT_EQ(timetable_text(table_of(2, 3, PipelineSchedule::k1F1B), PipelineSchedule::k1F1B, 100),
            "1f1b, 2 stages, 3 micro-batches\n"
            "stage 0  F0 F1 .  .  B0--- F2 B1--- .  B2---\n"
            "stage 1  .  F0 B0--- F1 B1--- F2 B2--- .  .\n"
            "F, B: forward and backward pass of a micro-batch; a column is 1 of time\n"
            "time 12, bubble 25.0 %; (p - 1) / (m + p - 1) is 25.0 %\n"
            "micro-batches held at most: 2, 1\n");
}

TEST(TimetableText, GradientsOfParametersHaveALetter) {
  EXPECT_THAT(
      timetable_text(table_of(2, 3, PipelineSchedule::kZeroBubble), PipelineSchedule::kZeroBubble, 100),
      HasSubstr("stage 1  .  F0 B0 F1 B1--- F2 B2 W0 W2\n"));
}

TEST(TimetableText, ANarrowTerminalGetsCharacters) {
  EXPECT_THAT(timetable_text(table_of(2, 3, PipelineSchedule::k1F1B), PipelineSchedule::k1F1B, 40),
              HasSubstr("stage 0  01..aa2bb.cc\n"
                        "stage 1  .0aa1bb2cc..\n"
                        "0 1 2: forward, a b c: backward"));
}

TEST(TimetableText, RowsThatAreTooLongGoOnBelow) {
  const auto text = timetable_text(table_of(2, 40, PipelineSchedule::kGPipe), PipelineSchedule::kGPipe, 60);
  for (const auto& line : split(text, '\n')) {
    if (!line.starts_with("stage")) continue;
    EXPECT_LE(line.size(), 60);
  }
  EXPECT_THAT(text, HasSubstr("from 51:\nstage 0  "));
}

TEST(TimetableText, TimesThatHaveNoCommonUnitAreRounded) {
  const auto table = simulate_pipeline({{1.013, 0.9, 0.9}, {1.1, 1.007, 1}}, 4, PipelineSchedule::k1F1B);
  EXPECT_THAT(timetable_text(table, PipelineSchedule::k1F1B, 100),
              HasSubstr("a column is 1.013 of time, rounded"));
}

TEST(TimetableText, ComparesSchedules) {
  std::vector<ComparedTimetable> tables;
  for (const auto schedule :
       {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble})
    tables.push_back({.schedule = schedule, .table = table_of(2, 8, schedule)});
  EXPECT_EQ(comparison_text(tables),
            "schedule         time   bubble  micro-batches held at most, by stage\n"
            "gpipe              27   11.1 %  8, 8\n"
            "1f1b               27   11.1 %  2, 1\n"
            "zero-bubble        25    4.0 %  2, 2\n");
}

}  // namespace
}  // namespace muster::detail
