#include "graph/graph_command.h"

#include "graph/schedule_command.h"
#include <CLI/CLI.hpp>

namespace muster::detail {

struct GraphCommand::Impl {
  explicit Impl(CLI::App& parent)
      : app(parent.add_subcommand("graph",
                                  "look at a graph in a file, at where its nodes would be, or at a "
                                  "pipeline's timetable")),
        schedule(*app) {
    app->require_subcommand(1);
  }

  CLI::App* app;
  ScheduleCommand schedule;
};

GraphCommand::GraphCommand(CLI::App& parent) : impl_(std::make_unique<Impl>(parent)) {}

GraphCommand::~GraphCommand() = default;

int GraphCommand::run() const {
  return impl_->schedule.run();
}

}  // namespace muster::detail
