#pragma once

// Which tasks a job has, and where each listens: {"ps": ["h1:2222"], "worker": ["h2:2222", "h3:2222"]}.
// Task indices may be sparse: {"worker": {"0": "h1:2222", "3": "h2:2222"}}. A value; checked when made.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/task_name.h"
#include "muster/net/address.h"

namespace muster::detail {

class ClusterSpec {
 public:
  using Tasks = std::map<int, Address>;

  ClusterSpec() = default;

  /// Throws InvalidArgument, naming the job or the address, for an empty job, a negative index, or an address
  /// that two tasks share.
  explicit ClusterSpec(std::map<std::string, Tasks> jobs);

  /// JSON as above, or "ps=h1:2222;worker=h2:2222,h3:2222", or "worker=0@h1:2222,3@h2:2222" for sparse
  /// indices.
  static ClusterSpec parse(std::string_view text);

  bool empty() const { return jobs_.empty(); }
  const std::map<std::string, Tasks>& jobs() const { return jobs_; }

  /// The number of tasks of `job`; 0 when there is no such job.
  int count(const std::string& job) const;

  /// Throws InvalidArgument that lists the tasks there are.
  const Address& address(const TaskName& task) const;

  std::vector<TaskName> tasks() const;
  std::string to_json() const;

  bool operator==(const ClusterSpec&) const = default;

 private:
  std::map<std::string, Tasks> jobs_;
};

}  // namespace muster::detail
