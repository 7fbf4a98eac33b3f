#include "graph/schedule_command.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "graph/timetable_text.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/terminal.h"
#include "muster/base/text.h"
#include "muster/graph/pipeline_schedule.h"

namespace muster::detail {

namespace {

// More would take long to work out, and nobody reads it.
constexpr int kMostStages = 256;
constexpr int kMostMicroBatches = 1024;
constexpr size_t kColumnsOfAFile = 100;

constexpr PipelineSchedule kAllSchedules[] = {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B,
                                              PipelineSchedule::kZeroBubble};

StageTimes times_of(double forward, double backward, double weight_share) {
  return {.forward = forward,
          .backward_inputs = backward * (1 - weight_share),
          .backward_weights = backward * weight_share};
}

}  // namespace

struct ScheduleCommand::Impl {
  CLI::App* app = nullptr;
  CLI::Option* stages_given = nullptr;
  CLI::Option* forward_given = nullptr;
  CLI::Option* backward_given = nullptr;
  CLI::Option* weight_share_given = nullptr;
  int stages = 2;
  int micro_batches = 8;
  std::string schedule;
  double forward = 1;
  double backward = 2;
  double weight_share = 0.5;
  std::string times;

  std::vector<StageTimes> all_times() const {
    if (times.empty())
      return std::vector<StageTimes>(static_cast<size_t>(stages), times_of(forward, backward, weight_share));
    if (*forward_given || *backward_given)
      raise<InvalidArgument>(
          "--times says what --forward and --backward say, for each stage: leave these out");
    std::vector<StageTimes> all;
    for (const auto& stage : split(times, ',')) {
      const auto both = split(stage, ':');
      const auto f = parse_real(both.front());
      const auto b = parse_real(both.back());
      if (both.size() != 2 || !f || !b)
        raise<InvalidArgument>("--times {}: '{}' is no forward and backward time of a stage; expected 1:2",
                               times, stage);
      all.push_back(times_of(*f, *b, weight_share));
    }
    if (*stages_given && all.size() != static_cast<size_t>(stages))
      raise<InvalidArgument>("--times {} is of {} stages, and --stages says {}", times, all.size(), stages);
    if (all.size() > kMostStages)
      raise<InvalidArgument>("--times is of {} stages; expected {} at most", all.size(), kMostStages);
    return all;
  }
};

ScheduleCommand::ScheduleCommand(CLI::App& parent) : impl_(std::make_unique<Impl>()) {
  impl_->app = parent.add_subcommand("schedule", "the timetable of a pipeline, and how much of it is idle");
  impl_->stages_given = impl_->app->add_option("--stages", impl_->stages, "stages of the pipeline")
                            ->check(CLI::Range(1, kMostStages))
                            ->capture_default_str();
  impl_->app->add_option("--micro-batches", impl_->micro_batches, "micro-batches of a step")
      ->check(CLI::Range(1, kMostMicroBatches))
      ->capture_default_str();
  impl_->app
      ->add_option("--schedule", impl_->schedule, "gpipe, 1f1b or zero-bubble; default: compare all three")
      ->check(CLI::IsMember({"gpipe", "1f1b", "zero-bubble"}));
  impl_->forward_given = impl_->app->add_option("--forward", impl_->forward, "time of a forward pass")
                             ->check(CLI::NonNegativeNumber)
                             ->capture_default_str();
  impl_->backward_given = impl_->app->add_option("--backward", impl_->backward, "time of a backward pass")
                              ->check(CLI::NonNegativeNumber)
                              ->capture_default_str();
  impl_->app->add_option("--times", impl_->times, "both for each stage, where they differ: 1:2,1.5:3");
  impl_->weight_share_given =
      impl_->app
          ->add_option("--weight-share", impl_->weight_share,
                       "zero-bubble: the share of a backward pass that the gradients of parameters take")
          ->check(CLI::Range(0.0, 1.0))
          ->capture_default_str();
  impl_->app->footer(
      "  muster graph schedule --stages 4 --micro-batches 8\n"
      "  muster graph schedule --schedule 1f1b --times 1:2,1:2,2:4");
}

ScheduleCommand::~ScheduleCommand() = default;

bool ScheduleCommand::chosen() const {
  return impl_->app->parsed();
}

int ScheduleCommand::run() const {
  if (*impl_->weight_share_given && !impl_->schedule.empty() && impl_->schedule != "zero-bubble")
    raise<InvalidArgument>(
        "--weight-share is for --schedule zero-bubble: to {} a backward pass is one piece of work",
        impl_->schedule);
  const auto times = impl_->all_times();
  const auto terminal = terminal_columns(STDOUT_FILENO);
  const size_t columns = terminal > 0 ? static_cast<size_t>(terminal) : kColumnsOfAFile;
  std::vector<ComparedTimetable> tables;
  for (const auto schedule : kAllSchedules) {
    if (!impl_->schedule.empty() && impl_->schedule != name_of(schedule)) continue;
    tables.push_back(
        {.schedule = schedule,
         .table = simulate_pipeline(times, static_cast<size_t>(impl_->micro_batches), schedule)});
    fmt::print("{}{}", tables.size() > 1 ? "\n" : "", timetable_text(tables.back().table, schedule, columns));
  }
  if (tables.size() > 1) fmt::print("\n{}", comparison_text(tables));
  return 0;
}

}  // namespace muster::detail
