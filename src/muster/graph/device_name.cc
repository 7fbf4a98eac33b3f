#include "muster/graph/device_name.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {

namespace {

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  raise<InvalidArgument>("'{}' is no device: {}; expected parts of /job:NAME/replica:0/task:0/device:cpu:0",
                         text, why);
}

int parse_index(std::string_view text, std::string_view part, std::string_view value) {
  const auto number = parse_integer(value);
  if (!number || *number < 0 || *number > 1'000'000)
    refuse(text, fmt::format("'{}' of '{}' is no number of a task, replica or processor", value, part));
  return static_cast<int>(*number);
}

bool is_job_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
}

template <typename T>
void set_once(std::optional<T>& field, T value, std::string_view text, std::string_view part) {
  if (field) refuse(text, fmt::format("'{}' is its second of a kind", part));
  field = std::move(value);
}

}  // namespace

std::string DeviceName::to_string() const {
  std::string text;
  if (job) text += "/job:" + *job;
  if (replica) text += fmt::format("/replica:{}", *replica);
  if (task) text += fmt::format("/task:{}", *task);
  if (cpu) text += fmt::format("/device:cpu:{}", *cpu);
  return text;
}

DeviceName parse_device(std::string_view text) {
  DeviceName name;
  if (text.empty()) return name;
  if (text.front() != '/') refuse(text, "it does not begin with '/'");
  for (const std::string& part : split(text.substr(1), '/')) {
    const size_t colon = part.find(':');
    const std::string kind = part.substr(0, colon);
    const std::string value = colon == std::string::npos ? "" : part.substr(colon + 1);
    if (kind == "job") {
      if (!is_job_name(value)) refuse(text, fmt::format("'{}' is no name of a job", value));
      set_once(name.job, value, text, part);
    } else if (kind == "replica") {
      set_once(name.replica, parse_index(text, part, value), text, part);
    } else if (kind == "task") {
      set_once(name.task, parse_index(text, part, value), text, part);
    } else if (kind == "cpu") {
      set_once(name.cpu, parse_index(text, part, value), text, part);
    } else if (kind == "device") {
      const size_t second = value.find(':');
      std::string type = value.substr(0, second);
      std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::tolower(c); });
      if (type != "cpu") refuse(text, fmt::format("there are only CPUs, and no '{}'", type));
      const std::string index = second == std::string::npos ? "0" : value.substr(second + 1);
      set_once(name.cpu, parse_index(text, part, index), text, part);
    } else {
      refuse(text, fmt::format("'{}' is no part of one", part));
    }
  }
  return name;
}

DeviceName merged(const DeviceName& outer, const DeviceName& inner) {
  return {.job = inner.job ? inner.job : outer.job,
          .replica = inner.replica ? inner.replica : outer.replica,
          .task = inner.task ? inner.task : outer.task,
          .cpu = inner.cpu ? inner.cpu : outer.cpu};
}

std::string merged_device(const std::string& outer, const std::string& inner, const std::string& node) {
  if (inner.empty()) return outer;
  try {
    return merged(parse_device(outer), parse_device(inner)).to_string();
  } catch (const InvalidArgument& error) {
    raise<InvalidArgument>("node '{}': {}", node, error.what());
  }
}

}  // namespace muster::detail
