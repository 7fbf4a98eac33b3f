#pragma once

// Names of devices, whole or in part: "/job:ps/replica:0/task:1/device:cpu:0", "/job:ps", "/task:1".
//
// Pure functions.

#include <optional>
#include <string>
#include <string_view>

namespace muster::detail {

struct DeviceName {
  std::optional<std::string> job;
  std::optional<int> replica;
  std::optional<int> task;
  std::optional<int> cpu;

  bool operator==(const DeviceName&) const = default;

  std::string to_string() const;  ///< the parts that are there, in the order above
};

/// Throws InvalidArgument for anything else, with what was expected.
DeviceName parse_device(std::string_view text);

/// `outer` with the parts of `inner` in their place: "/job:ps/task:0" with "/task:1" is "/job:ps/task:1".
DeviceName merged(const DeviceName& outer, const DeviceName& inner);

/// The same with names. Throws InvalidArgument that names the node.
std::string merged_device(const std::string& outer, const std::string& inner, const std::string& node);

}  // namespace muster::detail
