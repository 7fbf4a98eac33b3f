#include "graph/graph_command.h"

#include "graph/place_command.h"
#include "graph/schedule_command.h"
#include "graph/show_command.h"
#include <CLI/CLI.hpp>

namespace muster::detail {

struct GraphCommand::Impl {
  explicit Impl(CLI::App& parent)
      : app(parent.add_subcommand("graph",
                                  "look at a graph, at where its nodes would run, or at a "
                                  "pipeline's timetable")),
        show(*app),
        place(*app),
        schedule(*app) {
    app->require_subcommand(1);
  }

  CLI::App* app;
  ShowCommand show;
  PlaceCommand place;
  ScheduleCommand schedule;
};

GraphCommand::GraphCommand(CLI::App& parent) : impl_(std::make_unique<Impl>(parent)) {}

GraphCommand::~GraphCommand() = default;

int GraphCommand::run() const {
  if (impl_->show.chosen()) return impl_->show.run();
  if (impl_->place.chosen()) return impl_->place.run();
  return impl_->schedule.run();
}

}  // namespace muster::detail
