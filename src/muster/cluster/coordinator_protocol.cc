#include "muster/cluster/coordinator_protocol.h"

#include <fmt/format.h>

namespace muster::detail {

proto::Task to_proto(const TaskName& name) {
  proto::Task task;
  task.set_job(name.job.value_or(""));
  task.set_index(name.task.value_or(0));
  return task;
}

TaskName from_proto(const proto::Task& task) {
  return TaskName::of(task.job(), task.index());
}

proto::TaskInfo to_proto(const TaskInfo& info) {
  proto::TaskInfo result;
  *result.mutable_task() = to_proto(info.task);
  result.set_address(info.address);
  result.set_host_name(info.host_name);
  result.set_host_identity(info.host_identity);
  result.set_pid(info.pid);
  result.set_incarnation(info.incarnation);
  return result;
}

TaskInfo from_proto(const proto::TaskInfo& info) {
  return {.task = from_proto(info.task()),
          .address = info.address(),
          .host_name = info.host_name(),
          .host_identity = info.host_identity(),
          .pid = info.pid(),
          .incarnation = info.incarnation()};
}

std::string challenge_text(const char* role, const proto::Hello& hello,
                           const std::string& coordinator_nonce) {
  return fmt::format("muster/{}/{}/{}/{}/{}", role, hello.job_id(),
                     from_proto(hello.self().task()).to_string(), hello.nonce(), coordinator_nonce);
}

}  // namespace muster::detail
