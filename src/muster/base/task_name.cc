#include "muster/base/task_name.h"

#include <algorithm>
#include <cctype>
#include <climits>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

bool is_identifier(std::string_view text) {
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text.front())) != 0 &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return result;
}

template <typename T>
bool agree(const std::optional<T>& a, const std::optional<T>& b) {
  return !a || !b || *a == *b;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  TaskName parse() {
    if (text_.empty() || text_ == "/") return {};
    if (!text_.starts_with('/')) return parse_short();
    for (const auto& part : split(text_.substr(1), '/')) read_part(part);
    return name_;
  }

 private:
  TaskName parse_short() {
    const auto parts = split(text_, '/');
    if (parts.size() != 2) fail("it has neither a '/' in front nor the form job/index");
    read_part("job:" + parts[0]);
    read_part("task:" + parts[1]);
    if (!name_.job || !name_.task) fail("it must name one task");
    return name_;
  }

  void read_part(const std::string& part) {
    const size_t colon = part.find(':');
    const std::string key = part.substr(0, colon);
    if (colon == std::string::npos) fail(fmt::format("'{}' is not of the form key:value", part));
    const std::string value = part.substr(colon + 1);
    if (key == "job") {
      if (value == "*") return;
      if (!is_identifier(value)) fail(fmt::format("'{}' is not the name of a job", value));
      assign(name_.job, value, key);
    } else if (key == "replica") {
      assign_index(name_.replica, value, key);
    } else if (key == "task") {
      assign_index(name_.task, value, key);
    } else if (key == "device") {
      read_device(value);
    } else if (key == "cpu" || key == "CPU" || key == "gpu" || key == "GPU") {
      read_device(part);
    } else {
      fail(fmt::format("'{}' is not one of job, replica, task, device", key));
    }
  }

  void read_device(const std::string& value) {
    const size_t colon = value.find(':');
    const std::string type = value.substr(0, colon);
    if (type != "*") {
      if (!is_identifier(type)) fail(fmt::format("'{}' is not a type of device", type));
      assign(name_.device_type, lower(type), "device");
    }
    if (colon != std::string::npos) assign_index(name_.device_index, value.substr(colon + 1), "device");
  }

  void assign_index(std::optional<int>& slot, const std::string& value, const std::string& key) {
    if (value == "*") return;
    const auto number = parse_integer(value);
    if (!number || *number < 0 || *number > INT_MAX) {
      fail(fmt::format("'{}' is not an index of a {}: expected a whole number from 0", value, key));
    }
    assign(slot, static_cast<int>(*number), key);
  }

  template <typename T>
  void assign(std::optional<T>& slot, T value, const std::string& key) {
    if (slot) fail(fmt::format("it names the {} twice", key));
    slot = std::move(value);
  }

  [[noreturn]] void fail(const std::string& reason) {
    raise<InvalidArgument>("'{}' is not a task name such as worker/1 or /job:worker/task:1: {}", text_,
                           reason);
  }

  std::string_view text_;
  TaskName name_;
};

}  // namespace

TaskName TaskName::of(std::string job, int index) {
  TaskName name;
  name.job = std::move(job);
  name.task = index;
  return name;
}

TaskName TaskName::parse(std::string_view text) {
  return Parser(text).parse();
}

std::string TaskName::to_string() const {
  std::string text;
  if (job) text += fmt::format("/job:{}", *job);
  if (replica) text += fmt::format("/replica:{}", *replica);
  if (task) text += fmt::format("/task:{}", *task);
  if (device_type || device_index) {
    text += fmt::format("/device:{}:{}", device_type.value_or("*"),
                        device_index ? std::to_string(*device_index) : "*");
  }
  return text;
}

std::string TaskName::short_name() const {
  MUSTER_CHECK(job && task, "'{}' names no task", to_string());
  return fmt::format("{}/{}", *job, *task);
}

TaskName TaskName::with(const TaskName& inner) const {
  return {.job = inner.job ? inner.job : job,
          .replica = inner.replica ? inner.replica : replica,
          .task = inner.task ? inner.task : task,
          .device_type = inner.device_type ? inner.device_type : device_type,
          .device_index = inner.device_index ? inner.device_index : device_index};
}

bool TaskName::matches(const TaskName& other) const {
  return agree(job, other.job) && agree(replica, other.replica) && agree(task, other.task) &&
         agree(device_type, other.device_type) && agree(device_index, other.device_index);
}

}  // namespace muster::detail
