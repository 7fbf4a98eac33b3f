#pragma once

// Names of tasks and devices: /job:worker/replica:0/task:1/device:cpu:0. Any part may be missing; a missing
// part matches anything. The same names place graph operations, address tasks and appear in messages.

#include <compare>
#include <optional>
#include <string>
#include <string_view>

namespace muster::detail {

struct TaskName {
  std::optional<std::string> job;
  std::optional<int> replica;
  std::optional<int> task;
  std::optional<std::string> device_type;  ///< "cpu", in lower case
  std::optional<int> device_index;

  /// The task `index` of `job`, with no replica and no device.
  static TaskName of(std::string job, int index);

  /// Parts in any order, each at most once; `/cpu:0` and `/device:CPU:0` are the same; `*` is a missing part.
  /// Or a short name, `worker/1`. Throws InvalidArgument that names the part at fault.
  static TaskName parse(std::string_view text);

  /// In the order of the class comment, with only the parts that are there. Empty when none is.
  std::string to_string() const;

  /// "worker/1": how logs and messages to people name a task. Needs job and task.
  std::string short_name() const;

  /// True when every part that both name is the same: a pattern against a full name, or two patterns that
  /// some name matches.
  bool matches(const TaskName& other) const;

  /// This name with the parts of `inner` in their place: "/job:ps/task:0" with "/task:1" is "/job:ps/task:1".
  TaskName with(const TaskName& inner) const;

  auto operator<=>(const TaskName&) const = default;
};

}  // namespace muster::detail
