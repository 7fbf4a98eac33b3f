#include "muster/cluster/cluster_spec.h"

#include <climits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

using Json = nlohmann::ordered_json;

Address parse_task_address(const std::string& job, const std::string& text) {
  try {
    return Address::parse(text);
  } catch (const InvalidArgument& error) {
    raise<InvalidArgument>("the cluster's job '{}' has a bad address: {}", job, error.what());
  }
}

int parse_index(const std::string& job, const std::string& text) {
  const auto index = parse_integer(text);
  if (!index || *index < 0 || *index > INT_MAX) {
    raise<InvalidArgument>("the cluster's job '{}' has a bad task index '{}': expected a whole number from 0",
                           job, text);
  }
  return static_cast<int>(*index);
}

void add_task(ClusterSpec::Tasks& tasks, const std::string& job, int index, const std::string& address) {
  if (!tasks.emplace(index, parse_task_address(job, address)).second) {
    raise<InvalidArgument>("the cluster's job '{}' has task {} twice", job, index);
  }
}

std::string text_of(const Json& value, const std::string& job) {
  if (!value.is_string()) {
    raise<InvalidArgument>("the cluster's job '{}' has {} where an address such as \"h1:2222\" was expected",
                           job, value.dump());
  }
  return value.get<std::string>();
}

std::map<std::string, ClusterSpec::Tasks> parse_json(std::string_view text) {
  // A repeated key would silently win over the first: count them while reading.
  std::map<std::string, int> seen;
  const auto count_jobs = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth == 1 && event == Json::parse_event_t::key && ++seen[value.get<std::string>()] > 1) {
      raise<InvalidArgument>("the cluster names the job '{}' twice", value.get<std::string>());
    }
    return true;
  };
  Json json;
  try {
    json = Json::parse(text, count_jobs);
  } catch (const Json::parse_error& error) {
    raise<InvalidArgument>("the cluster is not valid JSON: {}", error.what());
  }
  if (!json.is_object())
    raise<InvalidArgument>("the cluster must map jobs to tasks, not be {}", json.type_name());
  std::map<std::string, ClusterSpec::Tasks> jobs;
  for (const auto& [job, listed] : json.items()) {
    auto& tasks = jobs[job];
    if (listed.is_array()) {
      int index = 0;
      for (const auto& address : listed) add_task(tasks, job, index++, text_of(address, job));
    } else if (listed.is_object()) {
      for (const auto& [index, address] : listed.items()) {
        add_task(tasks, job, parse_index(job, index), text_of(address, job));
      }
    } else {
      raise<InvalidArgument>("the cluster's job '{}' must be a list of addresses or map indices to addresses",
                             job);
    }
  }
  return jobs;
}

std::map<std::string, ClusterSpec::Tasks> parse_flag(std::string_view text) {
  std::map<std::string, ClusterSpec::Tasks> jobs;
  for (const auto& part : split(text, ';')) {
    const size_t equals = part.find('=');
    if (equals == std::string::npos) {
      raise<InvalidArgument>("'{}' does not describe a job: expected worker=h1:2222,h2:2222", part);
    }
    const std::string job = part.substr(0, equals);
    if (jobs.contains(job)) raise<InvalidArgument>("the cluster names the job '{}' twice", job);
    auto& tasks = jobs[job];
    const std::string listed = part.substr(equals + 1);
    if (listed.empty()) continue;
    int index = 0;
    for (const auto& entry : split(listed, ',')) {
      const size_t at = entry.find('@');
      if (at != std::string::npos) index = parse_index(job, entry.substr(0, at));
      add_task(tasks, job, index++, at == std::string::npos ? entry : entry.substr(at + 1));
    }
  }
  return jobs;
}

}  // namespace

ClusterSpec::ClusterSpec(std::map<std::string, Tasks> jobs) : jobs_(std::move(jobs)) {
  std::map<Address, TaskName> owners;
  for (const auto& [job, tasks] : jobs_) {
    TaskName::parse("/job:" + job);  // the name must be one that a task name can carry
    if (tasks.empty()) raise<InvalidArgument>("the cluster's job '{}' has no tasks", job);
    for (const auto& [index, address] : tasks) {
      if (index < 0) raise<InvalidArgument>("the cluster's job '{}' has the task index {}", job, index);
      if (address.port < 1 || address.port > 65535) {
        raise<InvalidArgument>(
            "the cluster's job '{}' has a bad address: port {} of {} is not between 1 and 65535", job,
            address.port, address.host);
      }
      const auto name = TaskName::of(job, index);
      const auto [owner, is_new] = owners.emplace(address, name);
      if (!is_new) {
        raise<InvalidArgument>("the cluster gives {} to both {} and {}", address.to_string(),
                               owner->second.to_string(), name.to_string());
      }
    }
  }
}

ClusterSpec ClusterSpec::parse(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) raise<InvalidArgument>("the cluster is empty");
  return ClusterSpec(text[first] == '{' ? parse_json(text) : parse_flag(text));
}

int ClusterSpec::count(const std::string& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? 0 : static_cast<int>(found->second.size());
}

const Address& ClusterSpec::address(const TaskName& task) const {
  if (task.job && task.task) {
    if (const auto job = jobs_.find(*task.job); job != jobs_.end()) {
      if (const auto found = job->second.find(*task.task); found != job->second.end()) return found->second;
    }
  }
  std::string there;
  for (const auto& name : tasks()) there += (there.empty() ? "" : ", ") + name.to_string();
  raise<InvalidArgument>("the cluster has no task {}; it has {}", task.to_string(),
                         there.empty() ? "none" : there);
}

std::vector<TaskName> ClusterSpec::tasks() const {
  std::vector<TaskName> names;
  for (const auto& [job, tasks] : jobs_) {
    for (const auto& [index, address] : tasks) names.push_back(TaskName::of(job, index));
  }
  return names;
}

std::string ClusterSpec::to_json() const {
  Json json = Json::object();
  for (const auto& [job, tasks] : jobs_) {
    const bool dense = tasks.rbegin()->first == static_cast<int>(tasks.size()) - 1;
    Json listed = dense ? Json::array() : Json::object();
    for (const auto& [index, address] : tasks) {
      if (dense) {
        listed.push_back(address.to_string());
      } else {
        listed[std::to_string(index)] = address.to_string();
      }
    }
    json[job] = std::move(listed);
  }
  return json.dump();
}

}  // namespace muster::detail
