#pragma once

#include <memory>

namespace CLI {
class App;
}

namespace muster::detail {

/// `muster graph schedule`: the timetable of a pipeline, before anybody builds one.
class ScheduleCommand {
 public:
  explicit ScheduleCommand(CLI::App& parent);
  ~ScheduleCommand();

  bool chosen() const;

  /// Prints it. Gives the exit code. Throws InvalidArgument for what makes no sense.
  int run() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::detail
